// How much attention each key gets: sums of columns of A = exp(s - lse), from the log-sum-exps of the forward pass.
// Scores must be rounded as there, and by little.
//
// A piece of work is some blocks of keys of one head and all queries that see them, so that no two pieces add to the
// same sum, and the number of threads does not change the result.
#pragma once

#include "tile.hpp"

namespace ISA {

constexpr int64_t STRETCH = 8; // blocks of a piece

template <class T>
struct Received {
    typedef Packed<T> P;
    static constexpr int64_t ROWS = T::ROWS;

    const hw_attention& call;
    const int64_t b, h, first, past; // the piece of work
    const int64_t du = P::units(call.D), g = h / (call.H / call.G), size = call.dtype == HW_FLOAT32 ? 4 : 2;
    const bool plain = are_products(call);
    const float factor = (plain ? (float)call.scale : 1.0f) * LOG2E;

    unit *keys = nullptr, *query = nullptr;                         // [blocks, du, 64], [64, du]
    float *scores = nullptr, *highest = nullptr, *down = nullptr; // [64, 64], [64], [64]: see `add`
    float* sums = nullptr;                                          // [blocks, 64]

    bool prepare() {
        const int64_t blocks = past - first;
        keys = (unit*)hw::scratch(0, 4 * TILE * (blocks * (du + 1) + du + TILE + 2));
        if (!keys) return false;
        query = keys + blocks * TILE * du, scores = (float*)(query + TILE * du);
        highest = scores + TILE * TILE, down = highest + TILE, sums = down + TILE;
        return true;
    }

    void run() {
        const Products products;
        std::memset(sums, 0, 4 * (past - first) * TILE);
        for (int64_t block = first; block < past; block++) {
            const hw_tensor& t = call.k;
            const char* x = (const char*)t.data + size * (b * t.stride[0] + g * t.stride[1] + block * TILE * t.stride[2]);
            P::transposed(call.dtype, x, t.stride[2], t.stride[3], least(TILE, call.K - block * TILE), call.D, keys + (block - first) * TILE * du);
        }
        for (int64_t tile = 0; tile * TILE < call.Q; tile++) add(tile, sight_of(call, b, h, tile));
        float* found = call.received + (b * call.H + h) * call.K + first * TILE;
        std::memcpy(found, sums, 4 * (least(call.K, past * TILE) - first * TILE));
    }

    // Add the attention that the queries of a tile give.
    void add(int64_t tile, const Sight& sight) {
        const int64_t q = tile * TILE, some = least(TILE, call.Q - q), row = (b * call.H + h) * call.Q + q;
        bool packed = false;
        for (int64_t block = first; block < past; block++) {
            const int64_t at = sight.find(block);
            if (at < 0) continue;
            if (!packed) {
                const hw_tensor& t = call.q;
                P::left(call.dtype, (const char*)t.data + size * (b * t.stride[0] + h * t.stride[1] + q * t.stride[2]), t.stride[2], t.stride[3], some, TILE, call.D, query);
                for (int64_t r = 0; r < some; r++) {
                    const bool empty = call.log_sum[row + r] == -INFINITY;
                    highest[r] = call.highest[row + r];
                    down[r] = empty ? -INFINITY : -LOG2E * (call.log_sum[row + r] + (plain ? highest[r] : 0.0f));
                }
            }
            packed = true;
            for (int64_t r = 0; r < some; r += ROWS) T::product(least(ROWS, some - r), query + r * du, du, 1, (const float*)(keys + (block - first) * TILE * du), TILE, du, scores + r * TILE, TILE, TILE, false);
            const Block one = sight.block(at);
            for (int64_t r = 0; r < some; r++) {
                if (!plain) transform(call, b, h, q + r, block * TILE, 0, TILE, scores + r * TILE);
                hide(call, sight, &one, r, 0, TILE, scores + r * TILE);
            }
            for (int64_t x = 0; x < TILE; x += W) {
                vf total{};
                for (int64_t r = 0; r < some; r++) {
                    const vf s = load(scores + r * TILE + x);
                    total += exp2<T::DEGREE>(plain ? fma(s, splat(factor), splat(down[r])) : fma(s - splat(highest[r]), splat(LOG2E), splat(down[r])));
                }
                float* sum = sums + (block - first) * TILE + x;
                store(sum, load(sum) + total);
            }
        }
    }
};

template <class T>
static int64_t received(const hw_attention& call) {
    const int64_t blocks = (call.K + TILE - 1) / TILE, stretches = (blocks + STRETCH - 1) / STRETCH; // blocks and pieces of a head
    return over_with_memory(call.threads, call.B * call.H * stretches, [&](int64_t piece) {
        const int64_t first = piece % stretches * STRETCH, head = piece / stretches;
        Received<T> received{call, head / call.H, head % call.H, first, least(blocks, first + STRETCH)};
        if (!received.prepare()) return false;
        received.run();
        return true;
    });
}

} // namespace ISA
