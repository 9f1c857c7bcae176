// A tile: 64 queries of one head, the keys that each of them may see, and its scores after options, mask and dropout.
#pragma once

#include "dropout.hpp"

#include <cstdlib>

namespace ISA {

constexpr int64_t TILE = 64;          // queries of a tile, keys of a block
constexpr int64_t PACKED = 1 << 18;   // bytes of packed keys and values in a chunk: half of a small second cache
constexpr int64_t PIECE = 1024;       // rows of a piece, so that packing is small beside the products
constexpr float SLACK = 8.0f;         // how far a row's scores may be above its reference, in units of log 2
constexpr float LOG2E = 1.44269504088896341f, LN2 = 0.69314718055994531f;

constexpr float EXACT = 1024.0f;       // up to this size scores are exact enough to compute weights from a log-sum-exp

INLINE float bounded(float x) { return x > -200.0f ? x : -200.0f; } // below that 2^x is 0, and 0 times -inf would be NaN

struct Block {
    int64_t number, bits; // bits: the place of its words, or -1 for none
};

// The keys that each row of a tile may see, and the blocks in which they are.
struct Sight {
    int64_t lo[TILE], hi[TILE];     // without the bits of blocks
    const hw_run* runs = nullptr;    // of HW_BLOCKS: [first_run, past_run) are the runs of the tile
    int64_t first_run = 0, past_run = 0;
    int64_t first = 0, past = 0;     // blocks, by number or by place
    mutable int64_t last = 0;        // the run of the block that was found last

    Block block(int64_t i) const {
        if (!runs) return {i, -1};
        if (i < runs[last].place || runs[last + 1].place <= i) last = last_run([=](const hw_run& run) { return run.place <= i; });
        return {runs[last].number + i - runs[last].place, runs[last].words};
    }

    // The first block of at least this number, from `first` to `past`.
    int64_t from(int64_t number) const {
        if (!runs) return least(past, most(first, number));
        if (first == past) return past;
        const int64_t run = last_run([=](const hw_run& each) { return each.number <= number; });
        return most(first, least(runs[run + 1].place, runs[run].place + most(0, number - runs[run].number)));
    }

    // The place of the block with this number, from `first` to `past`; -1 if no row of the tile sees it.
    int64_t find(int64_t number) const {
        const int64_t at = from(number);
        return at < past && block(at).number == number ? at : -1;
    }

    // The last run of the tile for which `before` is true; the first run if there is none.
    template <typename Before> int64_t last_run(Before before) const {
        int64_t lo = first_run, hi = past_run;
        while (hi - lo > 1) {
            const int64_t mid = (lo + hi) / 2;
            if (before(runs[mid])) lo = mid;
            else hi = mid;
        }
        return lo;
    }
};

INLINE Sight sight_of(const hw_attention& call, int64_t b, int64_t h, int64_t tile) {
    Sight s;
    const int64_t q = tile * TILE, rows = least(TILE, call.Q - q);
    for (int64_t r = 0; r < TILE; r++) s.lo[r] = 0, s.hi[r] = r < rows ? call.K : 0;
    if (call.mask == HW_BLOCKS) {
        const int64_t at = call.matrix[b * call.matrix_stride[0] + h * call.matrix_stride[1]] + tile;
        s.runs = call.runs, s.first_run = s.last = call.tiles[at], s.past_run = call.tiles[at + 1];
        s.first = s.runs[s.first_run].place, s.past = s.runs[s.past_run].place;
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

// Whether scores are products times a factor above 0, so that the highest product has the highest score. Differences of
// products are then taken before they are multiplied by the factor: large products would lose them by the rounding of
// the factor. (The bounds keep SLACK, and the factor times -inf, what they are.)
INLINE bool are_products(const hw_attention& call) {
    return call.softcap == 0.0 && !call.bias.data && !call.slopes && call.scale > 1e-30 && call.scale < 2e38;
}

// cap tanh(s / cap); by the polynomial of Cephes' tanhf where 1 - 2 / (exp(2 x) + 1) would cancel.
INLINE vf capped(vf s, float cap) {
    constexpr float NEAR[] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f, -3.33332819422e-1f};
    const vf y = s * splat(1.0f / cap), size = y < 0.0f ? -y : y, square = y * y;
    const vf near = fma(y * square, polynomial(NEAR, square), y);
    const vf most = size > 20.0f ? splat(20.0f) : size; // (tanh is 1 from 10 on, and 2^x ends at 127)
    const vf far = 1.0f - 2.0f / (exp2<6>(most * splat(2.0f * LOG2E)) + 1.0f);
    return (size < 0.625f ? near : y < 0.0f ? -far : far) * splat(cap);
}

// |i + K - Q - j| of the rows or keys of a vector, whose positions differ by `apart`.
INLINE vf distances(vi apart) {
    const vf far = __builtin_convertvector(apart, vf);
    return far < 0.0f ? -far : far;
}

// Apply scale, softcap, bias and slope to one row and the keys from `key + from` to `key + past`. (A bias may be the
// most negative number, which a factor would make infinite.)
static void transform(const hw_attention& call, int64_t b, int64_t h, int64_t row, int64_t key, int64_t from, int64_t past, float* s) {
    const hw_tensor& t = call.bias;
    const float* bias = t.data ? (const float*)t.data + b * t.stride[0] + h * t.stride[1] + row * t.stride[2] + key * t.stride[3] : nullptr;
    const vf scale = splat((float)call.scale);
    const float cap = (float)call.softcap, slope = call.slopes ? call.slopes[h] : 0.0f;
    const vi apart = lanes() + splat((int32_t)(key - (row + call.K - call.Q)));
    for (int64_t x = from; x < past; x += W) {
        vf y = load(s + x) * scale, more{};
        if (cap > 0) y = capped(y, cap);
        if (bias) {
            if (t.stride[3] == 1 && key + x + W <= call.K) more = load(bias + x);
            else for (int64_t j = 0; j < W && key + x + j < call.K; j++) more[j] = bias[(x + j) * t.stride[3]];
        }
        if (call.slopes) more -= splat(slope) * distances(apart + splat((int32_t)x));
        store(s + x, y + more);
    }
}

// Write -inf for the pairs of row r that the mask forbids, of some blocks side by side.
INLINE void hide(const hw_attention& call, const Sight& sight, const Block* blocks, int64_t r, int64_t from, int64_t past, float* s) {
    const int64_t lo = sight.lo[r] - blocks->number * TILE, hi = sight.hi[r] - blocks->number * TILE;
    if (lo > from || hi < past)
        for (int64_t x = from; x < past; x += W) {
            if (lo <= x && x + W <= hi) continue;
            const vi at = lanes() + splat((int32_t)x);
            store(s + x, (at >= splat((int32_t)most(lo, 0))) & (at < splat((int32_t)most(hi, 0))) ? load(s + x) : splat(-INFINITY));
        }
    if (!sight.runs) return;
    const vi bit = splat(1) << lanes();
    for (int64_t x = from; x < past; x += W) {
        const int64_t at = blocks[x / TILE].bits;
        const vi seen = splat(at < 0 ? -1 : (int32_t)(call.words[at + r] >> x % TILE)) & bit;
        store(s + x, seen != 0 ? load(s + x) : splat(-INFINITY));
    }
}

// A product as a score; the factor makes no finite product infinite.
INLINE float scored(float product, float factor) {
    const float score = product * factor;
    return std::isinf(score) && !std::isinf(product) ? std::copysign(3.40282347e38f, score) : score;
}

// Write the results of one row that follow from sums over its keys: the score m that they are relative to, the sums of
// e = exp(s - m), of e log2(e) and of e times the distance. A learned sink counts as one more key. Returns the factor
// that makes e a weight.
static float answer(const hw_attention& call, int64_t b, int64_t h, int64_t row, float m, float total, float product, float distances) {
    float by = 1.0f;
    if (call.sinks && call.sinks[h] != -INFINITY) {
        const float sink = call.sinks[h], to = sink > m ? sink : m, down = (m - to) * LOG2E, share = std::exp2((sink - to) * LOG2E);
        by = m == -INFINITY ? 0.0f : std::exp2(down);
        product = (m == -INFINITY ? 0.0f : by * (product + bounded(down) * total)) + share * bounded((sink - to) * LOG2E);
        total = total * by + share, m = to;
    }
    const bool empty = m == -INFINITY && total == 0.0f;
    const float inverse = empty ? 0.0f : by / total;
    const int64_t at = (b * call.H + h) * call.Q + row;
    if (call.highest) call.highest[at] = empty ? 0.0f : m;
    if (call.log_sum) call.log_sum[at] = empty ? -INFINITY : std::log(total);
    if (call.entropy) call.entropy[at] = empty ? 0.0f : std::log(total) - LN2 * product / total;
    if (call.distance) call.distance[at] = distances * inverse;
    return inverse;
}

INLINE uint32_t row_of_drops(const hw_attention& call, int64_t b, int64_t h, int64_t row) {
    return row_of_drops(call.seed, (b * call.H + h) * call.Q + row);
}

} // namespace ISA
