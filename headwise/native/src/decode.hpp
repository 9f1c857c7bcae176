// The forward pass of a few queries on many keys, as when a model decodes. What such a step costs is reading keys and
// values: they are read once for all heads that share them, from where they are, and the keys are shared by threads
// (Dao et al. 2023, Flash-Decoding).
//
// A piece of work is a part of the keys of one key head. The parts depend on K alone, and what rows have from each is
// added in their order, so the number of threads changes no result.
#pragma once

#include "softmax.hpp"

namespace ISA {

constexpr int64_t PART = 8;  // blocks of 64 keys in a part
constexpr int64_t FEW = 16;  // rows that share a key head: with more, packing pays

// Lane i is the sum of x[i].
template <int S = 1>
INLINE vf sums(vf* x) {
    if constexpr (S == W) return x[0];
    else {
        vi upper, lower;
        for (int i = 0; i < W; i++) upper[i] = i & S ? i - S + W : i, lower[i] = i & S ? i + W : i + S;
        for (int i = 0; i < W; i += 2 * S) x[i] = __builtin_shuffle(x[i], x[i + S], upper) + __builtin_shuffle(x[i], x[i + S], lower);
        return sums<2 * S>(x);
    }
}

// Products of R rows and 64 keys. n: a multiple of W.
template <int R>
static void dots(const float* q, int64_t n, const float* k, int64_t step, float* scores) {
    constexpr int N = W / R;
    for (int64_t key = 0; key < TILE; key += N, k += N * step) {
        vf x[W] = {};
        for (int64_t d = 0; d < n; d += W) {
            vf row[N];
            for (int j = 0; j < N; j++) row[j] = load(k + j * step + d);
            for (int r = 0; r < R; r++) {
                const vf y = load(q + r * n + d);
                for (int j = 0; j < N; j++) x[r * N + j] = fma(y, row[j], x[r * N + j]);
            }
        }
        const vf found = sums(x);
        for (int r = 0; r < R; r++) std::memcpy(scores + r * TILE + key, (const float*)&found + r * N, 4 * N);
    }
}

struct Decode {
    const hw_attention& call;
    const int64_t b, g;
    const int64_t heads = call.H / call.G, rows = heads * call.Q; // row: query i of head h at [h * Q + i]
    const int64_t all = rows > 2 ? up(rows, 4) : rows;            // rows that products read
    const int64_t depth = up(call.D, W), width = up(call.E, W);
    Softmax<Float32> softmax{call, b, width};

    // What a part has so far of each row, one behind the other.
    static int64_t size_of(const hw_attention& call) {
        const int64_t rows = up(call.H / call.G * call.Q, 4);
        return up(rows * (int64_t)(sizeof(Row) + 4 * up(call.E, W)), 64);
    }
    float* outputs(char* kept) const { return (float*)kept; }
    Row* states(char* kept) const { return (Row*)(kept + 4 * all * width); }

    // 64 rows of floats, where they are or as copies. A row of the copies has `padded` numbers.
    const float* floats(const hw_tensor& t, int64_t key, int64_t n, int64_t padded, float* copies, int64_t& step) const {
        const int64_t at = b * t.stride[0] + g * t.stride[1] + key * t.stride[2], some = least(TILE, call.K - key);
        step = t.stride[2];
        if (call.cache_dtype == HW_FLOAT32 && t.stride[3] == 1 && n == padded && some == TILE) return (const float*)t.data + at;
        step = padded;
        for (int64_t i = 0; i < TILE; i++) {
            if (i < some) floats_of(call.cache_dtype, t.data, at + i * t.stride[2], t.stride[3], n, copies + i * padded);
            std::memset(copies + i * padded + (i < some ? n : 0), 0, 4 * (padded - (i < some ? n : 0)));
        }
        return copies;
    }

    // Factors of 64 keys or values.
    inline __attribute__((always_inline)) void scaled(const hw_tensor& t, int64_t key, float* x) const {
        const float* by = (const float*)t.data + b * t.stride[0] + g * t.stride[1] + key * t.stride[2];
        for (int64_t j = 0; j < least(TILE, call.K - key); j++) x[j] *= by[j * t.stride[2]];
    }

    bool run(int64_t part, char* kept) const {
        float* query = (float*)hw::scratch(0, 4 * (all * (depth + TILE) + TILE * (depth + width)));
        if (!query) return false;
        float *scores = query + all * depth, *keys = scores + all * TILE, *values = keys + TILE * depth, *out = outputs(kept);
        Row* mine = states(kept);
        std::memset(query, 0, 4 * all * depth), std::memset(out, 0, 4 * all * width);
        for (int64_t r = 0; r < all; r++) mine[r].clear();
        const hw_tensor& t = call.q;
        for (int64_t r = 0; r < rows; r++)
            floats_of(call.dtype, t.data, b * t.stride[0] + (g * heads + r / call.Q) * t.stride[1] + r % call.Q * t.stride[2], t.stride[3], call.D, query + r * depth);
        Sight sights[FEW];
        for (int64_t h = 0; h < heads; h++) sights[h] = sight_of(call, b, g * heads + h, 0);
        for (int64_t number = part * PART; number < least((part + 1) * PART, (call.K + TILE - 1) / TILE); number++) {
            int64_t found[FEW], key = number * TILE, step;
            bool seen = false;
            for (int64_t h = 0; h < heads; h++) found[h] = sights[h].find(number), seen |= found[h] >= 0;
            if (!seen) continue;
            const float* x = floats(call.k, key, call.D, depth, keys, step);
            if (all <= 1) dots<1>(query, depth, x, step, scores);
            else if (all == 2) dots<2>(query, depth, x, step, scores);
            else for (int64_t r = 0; r < all; r += 4) dots<4>(query + r * depth, depth, x, step, scores + r * TILE);
            for (int64_t r = 0; r < rows; r++) {
                const int64_t h = r / call.Q;
                float* s = scores + r * TILE;
                if (found[h] < 0) {
                    std::memset(s, 0, 4 * TILE);
                    continue;
                }
                if (call.k_scale.data) scaled(call.k_scale, key, s);
                const Block block = sights[h].block(found[h]);
                softmax.soften(g * heads + h, 0, r % call.Q, sights[h], &block, 0, TILE, s, s, out + r * width, mine[r]);
                if (call.v_scale.data) scaled(call.v_scale, key, s);
            }
            if (!call.out.data) continue;
            x = floats(call.v, key, call.E, width, values, step);
            if (all <= 1) rows_of<Float32, 1>((const unit*)scores, TILE, 1, x, step, TILE, out, width, width, true);
            else if (all == 2) rows_of<Float32, 2>((const unit*)scores, TILE, 1, x, step, TILE, out, width, width, true);
            else for (int64_t r = 0; r < all; r += 4) rows_of<Float32, 4>((const unit*)(scores + r * TILE), TILE, 1, x, step, TILE, out + r * width, width, width, true);
        }
        return true;
    }

    // Adds up the parts, which stand behind one another, and writes the answers.
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
        if (softmax.odd && call.odd) *call.odd = 1;
    }
};

struct Decoding {
    const hw_attention* call;
    int64_t first, parts; // that some row sees
    char* kept;           // of each part of each key head
    bool failed;
};

static void decode_part(void* given, int64_t piece) {
    Decoding& work = *(Decoding*)given;
    const hw_attention& call = *work.call;
    const int64_t matrix = piece / work.parts;
    const Decode decode{call, matrix / call.G, matrix % call.G};
    if (!decode.run(work.first + piece % work.parts, work.kept + piece * Decode::size_of(call))) work.failed = true;
}

static void decode_finish(void* given, int64_t matrix) {
    Decoding& work = *(Decoding*)given;
    const hw_attention& call = *work.call;
    Decode{call, matrix / call.G, matrix % call.G}.finish(work.kept + matrix * work.parts * Decode::size_of(call), work.parts);
}

static bool is_few(const hw_attention& call) { return call.H / call.G * call.Q <= FEW; }

static int64_t decode(const hw_attention* call) {
    int64_t first = call->K, past = 0; // blocks
    for (int64_t i = 0; i < (call->mask == HW_BLOCKS ? call->B * call->H : 1); i++) {
        const Sight s = sight_of(*call, i / call->H, i % call->H, 0);
        if (s.first < s.past) first = least(first, s.block(s.first).number), past = most(past, s.block(s.past - 1).number + 1);
    }
    first = first < past ? first / PART : 0, past = most(first + 1, (past + PART - 1) / PART);
    const int64_t parts = past - first, pieces = call->B * call->G * parts;
    Decoding work{call, first, parts, (char*)hw::scratch(3, pieces * Decode::size_of(*call)), false};
    if (!work.kept) return 1;
    hw::on_threads(call->threads, pieces, decode_part, &work);
    if (work.failed) return 1;
    hw::on_threads(pieces > 256 ? call->threads : 1, call->B * call->G, decode_finish, &work);
    return 0;
}

} // namespace ISA
