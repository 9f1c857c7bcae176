// The forward pass of a few queries on many keys, as when a model decodes. Most of its time goes into reading keys and
// values: they are read in place, once for all heads that share them, and the keys are divided among threads (Dao et
// al. 2023, Flash-Decoding).
//
// A piece of work is a part of the keys of one key head. The parts depend only on K, and the results of a row from each
// part are added in the order of the parts, so the number of threads does not change the result.
#pragma once

#include "softmax.hpp"

namespace ISA {

constexpr int64_t FEW = 16;  // rows that share a key head: with more of them, packing is worth its time
#if defined(__AMX_BF16__)
constexpr int64_t FEW_BFLOAT16 = 4; // for tiles it is worth its time sooner
#else
constexpr int64_t FEW_BFLOAT16 = FEW;
#endif

// Blocks of 64 keys in a part: there are enough parts for the threads, and parts are long, because a part begins
// without prefetched data.
static int64_t part_of(const hw_attention& call) { return most(8, least(64, (call.K + TILE - 1) / TILE / 64)); }

// Lane i is the sum of x[i].
template <int S = 1>
INLINE vf sums(vf* x) {
    if constexpr (S == W) return x[0];
    else {
        for (int i = 0; i < W; i += 2 * S) x[i] = picked(x[i], x[i + S], upper<S>(Lanes())) + picked(x[i], x[i + S], lower<S>(Lanes()));
        return sums<2 * S>(x);
    }
}

// Prefetch a line of a block that is read soon. (It may be past the end.)
template <int DTYPE>
INLINE void fetch(const void* data, int64_t at, int64_t d) {
    constexpr int64_t size = DTYPE == HW_FLOAT32 ? 4 : DTYPE == HW_INT8 ? 1 : 2;
    if (d * size % 64 == 0) __builtin_prefetch((const char*)data + (at + d) * size, 0, 2);
}

// Scores [R, 64] of R queries [R, n] and 64 keys. n: a multiple of W.
template <int DTYPE, int R>
static void dots(const float* q, int64_t n, const void* keys, int64_t at, int64_t step, float* scores) {
    constexpr int N = W / R;
    for (int64_t key = 0; key < TILE; key += N, at += N * step) {
        vf x[W] = {};
        for (int64_t d = 0; d < n; d += W) {
            vf row[N];
            for (int j = 0; j < N; j++) row[j] = vector_of<DTYPE>(keys, at + j * step + d), fetch<DTYPE>(keys, at + (TILE + j) * step, d);
            for (int r = 0; r < R; r++) {
                const vf y = load(q + r * n + d);
                for (int j = 0; j < N; j++) x[r * N + j] = fma(y, row[j], x[r * N + j]);
            }
        }
        const vf found = sums(x);
        for (int r = 0; r < R; r++) std::memcpy(scores + r * TILE + key, (const float*)&found + r * N, 4 * N);
    }
}

// Outputs [R, n] += weights [R, 64] times 64 values, C vectors of each at a time.
template <int DTYPE, int R, int C>
INLINE void blend(const float* weights, const void* values, int64_t at, int64_t step, int64_t n, float* out) {
    vf x[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) x[r][c] = load(out + r * n + c * W);
    for (int64_t key = 0; key < TILE; key++, at += step) {
        vf row[C];
        for (int c = 0; c < C; c++) row[c] = vector_of<DTYPE>(values, at + c * W), fetch<DTYPE>(values, at + TILE * step, c * W);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) x[r][c] = fma(splat(weights[r * TILE + key]), row[c], x[r][c]);
    }
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(out + r * n + c * W, x[r][c]);
}

template <int DTYPE, int R>
static void blended(const float* weights, const void* values, int64_t at, int64_t step, int64_t n, float* out) {
    int64_t e = 0;
    for (; e + REGISTERS * W <= n; e += REGISTERS * W) blend<DTYPE, R, REGISTERS>(weights, values, at + e, step, n, out + e);
    for (; e < n; e += W) blend<DTYPE, R, 1>(weights, values, at + e, step, n, out + e);
}

template <int DTYPE> // the dtype of keys and values
struct Decode {
    const hw_attention& call;
    const int64_t b, g;
    const int64_t heads = call.H / call.G, rows = heads * call.Q; // row: query i of head h at [h * Q + i]
    const int64_t all = rows > 2 ? up(rows, 4) : rows;            // rows that products read
    const int64_t depth = up(call.D, W), width = up(call.E, W);
    Softmax<Float32> softmax{call, b, width};

    // The bytes of what a part has computed so far, for all rows.
    static int64_t size_of(const hw_attention& call) {
        const int64_t rows = up(call.H / call.G * call.Q, 4);
        return up(rows * (int64_t)(sizeof(Row) + 4 * up(call.E, W)), 64);
    }
    float* outputs(char* kept) const { return (float*)kept; }
    Row* states(char* kept) const { return (Row*)(kept + 4 * all * width); }

    // Whether 64 rows of n numbers from a key can be read in place.
    bool is_plain(const hw_tensor& t, int64_t key, int64_t n) const { return t.stride[3] == 1 && n % W == 0 && key + TILE <= call.K; }

    // The place of a row, for this example and key head.
    int64_t place(const hw_tensor& t, int64_t row) const { return b * t.stride[0] + g * t.stride[1] + row * t.stride[2]; }

    // 64 rows of n numbers as rows of `padded` floats.
    void copy(const hw_tensor& t, int64_t key, int64_t n, int64_t padded, float* to) const {
        std::memset(to, 0, 4 * TILE * padded);
        for (int64_t i = 0; i < least(TILE, call.K - key); i++) floats_of<DTYPE>(t.data, place(t, key + i), t.stride[3], n, to + i * padded);
    }

    // Scores or weights of one row and 64 keys, times the factors of keys or values.
    void factors(const hw_tensor& t, int64_t key, float* x) const {
        const float* by = (const float*)t.data + place(t, key);
        const int64_t some = least(TILE, call.K - key);
        if (t.stride[2] == 1 && some == TILE) for (int64_t j = 0; j < TILE; j += W) store(x + j, load(x + j) * load(by + j));
        else for (int64_t j = 0; j < some; j++) x[j] *= by[j * t.stride[2]];
    }

    template <int OF>
    void score(const float* query, const void* keys, int64_t at, int64_t step, float* scores) const {
        if (all <= 1) dots<OF, 1>(query, depth, keys, at, step, scores);
        else if (all == 2) dots<OF, 2>(query, depth, keys, at, step, scores);
        else for (int64_t r = 0; r < all; r += 4) dots<OF, 4>(query + r * depth, depth, keys, at, step, scores + r * TILE);
    }

    template <int OF>
    void blend_all(const float* weights, const void* values, int64_t at, int64_t step, float* out) const {
        if (all <= 1) blended<OF, 1>(weights, values, at, step, width, out);
        else if (all == 2) blended<OF, 2>(weights, values, at, step, width, out);
        else for (int64_t r = 0; r < all; r += 4) blended<OF, 4>(weights + r * TILE, values, at, step, width, out + r * width);
    }

    bool run(int64_t part, char* kept) const {
        const Products products;
        float* query = (float*)hw::scratch(0, 4 * (all * (depth + TILE) + TILE * most(depth, width)));
        if (!query) return false;
        float *scores = query + all * depth, *copied = scores + all * TILE, *out = outputs(kept);
        Row* mine = states(kept);
        std::memset(query, 0, 4 * all * depth), std::memset(out, 0, 4 * all * width);
        for (int64_t r = 0; r < all; r++) mine[r].clear();
        const hw_tensor& t = call.q;
        for (int64_t r = 0; r < rows; r++)
            floats_of(call.dtype, t.data, b * t.stride[0] + (g * heads + r / call.Q) * t.stride[1] + r % call.Q * t.stride[2], t.stride[3], call.D, query + r * depth);
        Sight sights[FEW];
        for (int64_t h = 0; h < heads; h++) sights[h] = sight_of(call, b, g * heads + h, 0);
        const int64_t size = part_of(call);
        for (int64_t number = part * size; number < least((part + 1) * size, (call.K + TILE - 1) / TILE); number++) {
            int64_t found[FEW], key = number * TILE;
            bool seen = false;
            for (int64_t h = 0; h < heads; h++) found[h] = sights[h].find(number), seen |= found[h] >= 0;
            if (!seen) continue;
            if (is_plain(call.k, key, call.D)) score<DTYPE>(query, call.k.data, place(call.k, key), call.k.stride[2], scores);
            else copy(call.k, key, call.D, depth, copied), score<HW_FLOAT32>(query, copied, 0, depth, scores);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t h = r / call.Q;
                float* s = scores + r * TILE;
                if (found[h] < 0) {
                    std::memset(s, 0, 4 * TILE);
                    continue;
                }
                if (DTYPE == HW_INT8) factors(call.k_scale, key, s);
                const Block block = sights[h].block(found[h]);
                softmax.soften(g * heads + h, 0, r % call.Q, sights[h], &block, 0, TILE, s, s, out + r * width, mine[r]);
                if (DTYPE == HW_INT8 && call.out.data) factors(call.v_scale, key, s);
            }
            if (!call.out.data) continue;
            if (is_plain(call.v, key, call.E)) blend_all<DTYPE>(scores, call.v.data, place(call.v, key), call.v.stride[2], out);
            else copy(call.v, key, call.E, width, copied), blend_all<HW_FLOAT32>(scores, copied, 0, width, out);
        }
        return true;
    }

    // Add up the parts, which are next to one another, and write the answers.
    void finish(char* kept, int64_t parts) {
        for (int64_t r = 0; r < rows; r++) {
            float* out = outputs(kept) + r * width;
            Row& mine = states(kept)[r];
            for (int64_t i = 1; i < parts; i++) {
                char* other = kept + i * size_of(call);
                softmax.add(out, mine, outputs(other) + r * width, states(other)[r]);
            }
            softmax.finish(g * heads + r / call.Q, r % call.Q, out, mine);
        }
        softmax.tell_odd();
    }
};

static bool is_few(const hw_attention& call) { return call.H / call.G * call.Q <= (call.cache_dtype == HW_BFLOAT16 ? FEW_BFLOAT16 : FEW); }

template <int DTYPE>
static int64_t decode(const hw_attention& call) {
    int64_t first = call.K, past = 0; // blocks
    for (int64_t i = 0; i < (call.mask == HW_BLOCKS ? call.B * call.H : 1); i++) {
        const Sight s = sight_of(call, i / call.H, i % call.H, 0);
        if (s.first < s.past) first = least(first, s.block(s.first).number), past = most(past, s.block(s.past - 1).number + 1);
    }
    const int64_t size = part_of(call);
    first = first < past ? first / size : 0, past = most(first + 1, (past + size - 1) / size);
    const int64_t parts = past - first, pieces = call.B * call.G * parts, bytes = Decode<DTYPE>::size_of(call);
    char* kept = (char*)hw::scratch(3, pieces * bytes); // the results of each part of each key head
    if (!kept) return 1;
    const int64_t code = over_with_memory(call.threads, pieces, [&](int64_t piece) {
        const int64_t matrix = piece / parts;
        const Decode<DTYPE> decode{call, matrix / call.G, matrix % call.G};
        return decode.run(first + piece % parts, kept + piece * bytes);
    });
    if (code) return code;
    over(pieces > 256 ? call.threads : 1, call.B * call.G, [&](int64_t matrix) {
        Decode<DTYPE>{call, matrix / call.G, matrix % call.G}.finish(kept + matrix * parts * bytes, parts);
    });
    return 0;
}

static int64_t decode(const hw_attention& call) {
    switch (call.cache_dtype) {
    case HW_FLOAT32: return decode<HW_FLOAT32>(call);
    case HW_BFLOAT16: return decode<HW_BFLOAT16>(call);
    case HW_FLOAT16: return decode<HW_FLOAT16>(call);
    default: return decode<HW_INT8>(call);
    }
}

} // namespace ISA
