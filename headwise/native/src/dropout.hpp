// Dropout: whether a number is kept is a hash of the seed and its place, so it is the same forward and backward, and in
// whatever order it is asked. The hash within a row is "lowbias32" (Wellons 2018), that of a row SplitMix64 (Steele 2014).
#pragma once

#include "convert.hpp"
#include "pool.hpp"

namespace ISA {

INLINE uint32_t row_of_drops(int64_t seed, int64_t row) {
    uint64_t x = (uint64_t)seed + 0x9e3779b97f4a7c15ull * (uint64_t)(row + 1);
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)(x >> 32);
}

template <class Call>
INLINE vi keeps(const Call& call, vi row, vi place) {
    vu x = (vu)row + (vu)place * (uint32_t)0x9e3779b9;
    x = (x ^ x >> 16) * (uint32_t)0x7feb352d;
    x = (x ^ x >> 15) * (uint32_t)0x846ca68b;
    x ^= x >> 16;
    return x >= (uint32_t)least((int64_t)(call.dropout * 4294967296.0), 0xffffffff);
}

template <class Call>
INLINE float kept_scale(const Call& call) { return call.dropout < 1.0 ? (float)(1.0 / (1.0 - call.dropout)) : 0.0f; }

constexpr int64_t DROP_ROW = 8192; // numbers that share the hash of a row, and are one piece of work

template <int DTYPE>
void dropout(const hw_dropout& call) {
    over(call.threads, (call.N + DROP_ROW - 1) / DROP_ROW, [&](int64_t row) {
        const int64_t from = row * DROP_ROW, n = least(DROP_ROW, call.N - from);
        const vi hash = splat((int32_t)row_of_drops(call.seed, row));
        const vf scale = splat(kept_scale(call));
        auto kept = [&](int64_t i, vf x) { return keeps(call, hash, lanes() + splat((int32_t)i)) ? x * scale : vf{}; };
        int64_t i = 0;
        for (; i + W <= n; i += W) write_vector(DTYPE, call.y, from + i, kept(i, vector_of<DTYPE>(call.x, from + i)));
        if (i == n) return;
        vf rest{};
        for (int64_t j = i; j < n; j++) rest[j - i] = number(DTYPE, call.x, from + j);
        rest = kept(i, rest);
        for (int64_t j = i; j < n; j++) write_number(DTYPE, call.y, from + j, rest[j - i]);
    });
}

} // namespace ISA
