// A tile: 64 queries of one head, the keys that each of them may see, and the scores of a row as the options change them.
#pragma once

#include "convert.hpp"
#include "pool.hpp"

#include <cstdlib>

namespace ISA {

constexpr int64_t TILE = 64;          // queries of a tile, keys of a block
constexpr int64_t PACKED = 1 << 19;   // bytes of packed keys and values in a chunk
constexpr int64_t PIECE = 1024;       // rows of a piece, so that packing is small beside the products
constexpr float SLACK = 8.0f;         // a row's scores may be so far above its reference, in units of log 2
constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.69314718055994531f;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t up(int64_t a, int64_t to) { return (a + to - 1) / to * to; }

struct Block {
    int64_t number, bits; // bits: where, or -1 for none
};

// The keys that each row of a tile may see, and the blocks in which they are.
struct Sight {
    int64_t lo[TILE], hi[TILE];     // apart from bits
    const int64_t* blocks = nullptr; // of HW_BLOCKS
    int64_t first = 0, past = 0;     // blocks: by number, or places in `blocks`

    Block block(int64_t i) const { return blocks ? Block{blocks[2 * i], blocks[2 * i + 1]} : Block{i, -1}; }
};

INLINE Sight sight_of(const hw_attention& call, int64_t b, int64_t h, int64_t tile) {
    Sight s;
    const int64_t q = tile * TILE, rows = least(TILE, call.Q - q);
    for (int64_t r = 0; r < TILE; r++) s.lo[r] = 0, s.hi[r] = r < rows ? call.K : 0;
    if (call.mask == HW_BLOCKS) {
        const int64_t at = call.matrix[b * call.matrix_stride[0] + h * call.matrix_stride[1]] + tile;
        s.blocks = call.blocks, s.first = call.tiles[at], s.past = call.tiles[at + 1];
        return s;
    }
    int64_t lo = call.K, hi = 0;
    for (int64_t r = 0; r < rows; r++) {
        if (call.mask == HW_BAND) s.lo[r] = most(0, q + r + call.low), s.hi[r] = least(call.K, q + r + call.high + 1);
        if (s.lo[r] < s.hi[r]) lo = least(lo, s.lo[r]), hi = most(hi, s.hi[r]);
        else s.lo[r] = s.hi[r] = 0;
    }
    if (lo < hi) s.first = lo / TILE, s.past = (hi + TILE - 1) / TILE;
    return s;
}

// cap tanh(s / cap)
INLINE vf capped(vf s, float cap) {
    const vf y = s * splat(1.0f / cap), size = y < 0.0f ? -y : y, square = y * y;
    vf near = fma(square, splat(-17.0f / 315.0f), splat(2.0f / 15.0f)); // its series, where the other form would cancel
    near = fma(square, near, splat(-1.0f / 3.0f));
    near = y + y * square * near;
    const vf far = 1.0f - 2.0f / (exp2<6>(size * splat(2.0f * LOG2E)) + 1.0f);
    return (size < 0.1f ? near : y < 0.0f ? -far : far) * splat(cap);
}

} // namespace ISA
