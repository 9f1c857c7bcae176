// The gradients of q, k and v, from the scores computed again (FlashAttention-2, Dao 2023, algorithm 2).
//
//     P = exp(s - lse),  dV = P^T dO,  dS = scale P (dO V^T - rowsum(dO out)),  dQ = dS K,  dK = dS^T Q
//
// With dropout, dV and dO V^T use the weights that are kept. With softcap, its slope is a factor of dS. The gradient of
// a bias is dS before slope and scale; the gradient of ALiBi's slopes is the sum of these times the negative distances;
// the gradient of a sink is the sum of -exp(sink - lse) rowsum(dO out).
//
// rowsum(dO out) has the rounding error of `out`, which is large in half precision. With few keys it is computed from
// P instead, before any dS. Otherwise the sum of dS over the keys of a row, which should be 0, is its error. The
// gradients of slopes and sinks, each one sum over all pairs, are corrected by it.
//
// Large scores have large rounding errors, and in another order of summation they are not the scores that lse was
// computed from: lse is then computed again first.
//
// Scores are computed transposed, with one row per key: P^T and dS^T are then the left sides that dV and dK need, and
// the right side of dQ^T = K^T dS^T. A piece of work is one key head with all its queries, or with some of them: the
// shares of these pieces in dK and dV are added in the order of the pieces. How the work is cut depends only on the
// shapes, so the number of threads does not change the result.
#pragma once

#include "tile.hpp"

namespace ISA {

constexpr int64_t QUERIES = 640 << 10; // bytes of packed queries in a chunk
constexpr int64_t PART = 32;           // queries or keys that are computed together: as few as tiles of AMX allow
constexpr int64_t FEW_BLOCKS = 4;      // up to so many blocks of keys are all kept, with the scores of a tile

template <class T>
struct Backward {
    typedef Packed<T> P;
    typedef typename P::Weight Weight;
    static constexpr int64_t ROWS = T::ROWS, HALF = TILE / T::PAIR;

    const hw_attention& call;
    const int64_t b, g, first_tile, past_tile;
    float *dk, *dv; // [keys, dw], [keys, ew]: where the piece adds its share
    double *dslopes, *dsinks; // [heads]: the same for slopes and sinks
    const int64_t du = P::units(call.D), eu = P::units(call.E);
    const int64_t dw = up(call.D, T::COLUMNS), ew = up(call.E, T::COLUMNS), dr = up(call.D, ROWS);
    const int64_t heads = call.H / call.G, size = call.dtype == HW_FLOAT32 ? 4 : 2;
    const int64_t packed_tile = TILE * (du + eu + (dw + ew) / T::PAIR + dr + 7) * 4; // bytes
    int64_t chunk_tiles = 0;

    // The packed data of one tile of the chunk. Tiles of one head after the other.
    struct Queries {
        unit *qt, *dot; // [du, 64], [eu, 64]
        unit *q, *dout; // [64, dw], [64, ew]
        float *dqt;     // [dr, 64]
        float *highest, *log_sum, *delta; // [64]: a product, or a score, as below; log_sum in units of log 2
        int32_t* drops;                   // [64]
        float *rest, *steep, *far;        // [64]: sums over the keys of dS, of dS times distance, of P times distance
    };
    // The packed data of a block of keys, and its pairs with a tile.
    struct Keys {
        unit *k, *v, *kt;           // [64, du], [64, eu], [dr, 64]
        float *scores, *dp, *bias; // [64, 64] keys by queries
    };
    const int64_t blocks = (call.K + TILE - 1) / TILE;
    const bool few = blocks <= FEW_BLOCKS;
    const bool plain = are_products(call);                  // then `scores` holds products
    const float natural = plain ? (float)call.scale : 1.0f; // the factor from products to scores
    const float factor = natural * LOG2E;
    Keys slots[FEW_BLOCKS] = {}; // of all blocks, if they are few; else the first one, of one after the other
    Weight *p = nullptr, *ds = nullptr;             // the same as the left side of a product
    unit* right = nullptr;                          // dS^T as the right side
    char* chunk = nullptr;

    bool prepare() {
        chunk_tiles = least(past_tile - first_tile, most(1, QUERIES / (packed_tile * heads)));
        chunk = (char*)hw::scratch(0, chunk_tiles * heads * packed_tile);
        const int64_t floats = TILE * (du + eu) + up(dr * HALF, 16) + TILE * TILE * 3; // of a slot
        const int64_t held = few ? blocks : 1;
        float* more = (float*)hw::scratch(1, 4 * (held * floats + TILE * TILE * 3));
        if (!chunk || !more) return false;
        for (int64_t i = 0; i < held; i++, more += floats) {
            Keys& x = slots[i];
            x.k = (unit*)more, x.v = x.k + TILE * du, x.kt = x.v + TILE * eu;
            x.scores = (float*)(x.kt + up(dr * HALF, 16)), x.dp = x.scores + TILE * TILE, x.bias = x.dp + TILE * TILE;
            std::memset(x.kt, 0, 4 * dr * HALF);
        }
        p = (Weight*)more, ds = (Weight*)(more + TILE * TILE);
        right = T::PAIR > 1 ? (unit*)(more + 2 * TILE * TILE) : (unit*)ds;
        return true;
    }

    Queries queries(int64_t i) const {
        Queries x;
        float* at = (float*)(chunk + i * packed_tile);
        x.qt = (unit*)at, at += TILE * du;
        x.dot = (unit*)at, at += TILE * eu;
        x.q = (unit*)at, at += HALF * dw;
        x.dout = (unit*)at, at += HALF * ew;
        x.dqt = at, at += TILE * dr;
        x.highest = at, x.log_sum = at + TILE, x.delta = at + 2 * TILE, x.drops = (int32_t*)(at + 3 * TILE);
        x.rest = at + 4 * TILE, x.steep = at + 5 * TILE, x.far = at + 6 * TILE;
        return x;
    }

    void run() {
        const Products products;
        for (int64_t t0 = first_tile; t0 < past_tile; t0 += chunk_tiles) {
            const int64_t t1 = least(past_tile, t0 + chunk_tiles), n = (t1 - t0) * heads;
            int64_t first = call.K, past = 0;
            for (int64_t i = 0; i < n; i++) {
                const Sight s = sight_of(call, b, g * heads + i % heads, t0 + i / heads);
                if (s.first < s.past) first = least(first, s.block(s.first).number), past = most(past, s.block(s.past - 1).number + 1);
                pack_queries(g * heads + i % heads, t0 + i / heads, queries(i));
                if (!few && has_large(queries(i))) normalise(g * heads + i % heads, t0 + i / heads, queries(i));
            }
            if (few) {
                for (int64_t block = 0; t0 == first_tile && block < blocks; block++) pack_keys(block, slots[block]);
                for (int64_t i = 0; i < n; i++) all_keys(g * heads + i % heads, t0 + i / heads, queries(i));
            }
            for (int64_t block = first; !few && block < past; block++) {
                bool packed = false;
                for (int64_t i = 0; i < n; i++) {
                    const int64_t h = g * heads + i % heads, tile = t0 + i / heads;
                    const Sight sight = sight_of(call, b, h, tile);
                    const int64_t at = sight.find(block);
                    if (at < 0) continue;
                    if (!packed) pack_keys(block, slots[0]);
                    packed = true;
                    const Pairs pairs(call, h, tile, sight, sight.block(at));
                    score(pairs, queries(i), slots[0]);
                    differentiate(pairs, queries(i), slots[0]);
                }
            }
            for (int64_t i = 0; i < n; i++) {
                write_queries(g * heads + i % heads, t0 + i / heads, queries(i));
                if (call.d_sinks || call.d_slopes) add_sums(i % heads, t0 + i / heads, queries(i));
            }
        }
    }

    const char* row_of(const hw_tensor& t, int64_t head, int64_t row) const {
        return (const char*)t.data + size * (b * t.stride[0] + head * t.stride[1] + row * t.stride[2]);
    }

    void pack_queries(int64_t h, int64_t tile, const Queries& x) {
        const int64_t q = tile * TILE, some = least(TILE, call.Q - q), dtype = call.dtype;
        const hw_tensor &tq = call.q, &td = call.d_out, &to = call.out;
        P::transposed(dtype, row_of(tq, h, q), tq.stride[2], tq.stride[3], some, call.D, x.qt);
        P::right(dtype, row_of(tq, h, q), tq.stride[2], tq.stride[3], some, call.D, dw, x.q);
        P::transposed(dtype, row_of(td, h, q), td.stride[2], td.stride[3], some, call.E, x.dot);
        P::right(dtype, row_of(td, h, q), td.stride[2], td.stride[3], some, call.E, ew, x.dout);
        std::memset(x.dqt, 0, 4 * TILE * dr);
        std::memset(x.rest, 0, 3 * 4 * TILE);
        for (int64_t r = 0; r < TILE; r++) x.highest[r] = 0, x.log_sum[r] = INFINITY, x.delta[r] = 0; // sees no key
        const int64_t at = (b * call.H + h) * call.Q + q;
        for (int64_t r = 0; r < some; r++) {
            if (call.log_sum[at + r] != -INFINITY) {
                x.highest[r] = call.highest[at + r] / natural;
                x.log_sum[r] = (float)((call.highest[at + r] - (double)x.highest[r] * natural + call.log_sum[at + r]) * LOG2E);
            }
            vf delta{};
            for (int64_t e = 0; e < call.E; e += TILE) {
                float dout[TILE] = {}, out[TILE] = {};
                const int64_t n = least(TILE, call.E - e);
                floats_of(dtype, row_of(td, h, q + r), e * td.stride[3], td.stride[3], n, dout);
                floats_of(dtype, row_of(to, h, q + r), e * to.stride[3], to.stride[3], n, out);
                for (int64_t i = 0; i < n; i += W) delta = fma(load(dout + i), load(out + i), delta);
            }
            x.delta[r] = sum(delta);
        }
        if (call.dropout > 0)
            for (int64_t r = 0; r < TILE; r++) x.drops[r] = (int32_t)row_of_drops(call, b, h, q + r);
    }

    void pack_keys(int64_t block, const Keys& y) {
        const int64_t key = block * TILE, some = least(TILE, call.K - key);
        P::left(call.dtype, row_of(call.k, g, key), call.k.stride[2], call.k.stride[3], some, TILE, call.D, y.k);
        P::left(call.dtype, row_of(call.v, g, key), call.v.stride[2], call.v.stride[3], some, TILE, call.E, y.v);
        P::left_transposed(call.dtype, row_of(call.k, g, key), call.k.stride[2], call.k.stride[3], some, call.D, y.kt);
    }

    // C [rows, columns] += or = A B, in groups of rows.
    static void product(int64_t rows, const unit* a, int64_t rs, const void* right_side, int64_t bs, int64_t n, float* c, int64_t cs, int64_t columns, bool add) {
        for (int64_t r = 0; r < rows; r += ROWS) T::product(least(ROWS, rows - r), a + r * rs, rs, 1, (const float*)right_side, bs, n, c + r * cs, cs, columns, add);
    }

    // The pairs of a tile's queries, from query q, and a block's keys, from key `key`: query i sees the keys
    // [lo[i], hi[i]) of the block that the bits of the block allow; `whole`: all queries see all keys.
    struct Pairs {
        int64_t h, q, key, keys;
        Block block;
        int64_t rows, columns; // keys and queries to compute, a multiple of PART: most of a block is empty where sequences are short
        bool whole;
        float alibi;
        int32_t lo[TILE], hi[TILE];

        Pairs(const hw_attention& call, int64_t h, int64_t tile, const Sight& sight, const Block& block)
            : h(h), q(tile * TILE), key(block.number * TILE), keys(least(TILE, call.K - key)), block(block), rows(up(keys, PART)), columns(up(least(TILE, call.Q - q), PART)), whole(keys == TILE && block.bits < 0), alibi(call.slopes ? call.slopes[h] : 0.0f) {
            for (int64_t r = 0; r < TILE; r++) {
                whole &= sight.lo[r] <= key && sight.hi[r] >= key + TILE;
                lo[r] = (int32_t)most(0, least(TILE, sight.lo[r] - key)), hi[r] = (int32_t)most(0, least(keys, sight.hi[r] - key));
            }
        }
    };

    // Score a tile with all blocks of keys, when they are few.
    void all_keys(int64_t h, int64_t tile, const Queries& x) {
        const Sight sight = sight_of(call, b, h, tile);
        for (int64_t i = sight.first; i < sight.past; i++) score(Pairs(call, h, tile, sight, sight.block(i)), x, slots[sight.block(i).number]);
        if (!find_delta(h, tile, sight, x)) normalise(h, tile, x), find_delta(h, tile, sight, x);
        for (int64_t i = sight.first; i < sight.past; i++) differentiate(Pairs(call, h, tile, sight, sight.block(i)), x, slots[sight.block(i).number]);
    }

    void score(const Pairs& pairs, const Queries& x, const Keys& y) const {
        product(pairs.rows, y.k, du, x.qt, TILE, du, y.scores, TILE, pairs.columns, false);
        product(pairs.rows, y.v, eu, x.dot, TILE, eu, y.dp, TILE, pairs.columns, false);
        if (call.bias.data) gather_bias(pairs, y.bias);
    }

    void differentiate(const Pairs& pairs, const Queries& x, const Keys& y) {
        const bool quick = pairs.whole && plain && !call.d_bias.data && call.dropout == 0.0;
        for (int64_t j = 0; j < pairs.rows; j++) {
            if (quick) weigh(j, pairs.columns, x, y);
            else weigh(j, pairs, x, y);
        }
        if (call.d_bias.data) add_bias(pairs, y.bias);
        const int64_t keys = pairs.rows / T::PAIR, queries = pairs.columns / T::PAIR; // units
        if constexpr (T::PAIR > 1)
            for (int64_t j = 0; j < keys; j++)
                for (int64_t i = 0; i < pairs.columns; i++) right[j * TILE + i] = (unit)ds[2 * j * TILE + i] | (unit)ds[(2 * j + 1) * TILE + i] << 16;
        product(pairs.rows, (const unit*)p, HALF, x.dout, ew, queries, dv + pairs.key * ew, ew, ew, true);
        product(pairs.rows, (const unit*)ds, HALF, x.q, dw, queries, dk + pairs.key * dw, dw, dw, true);
        product(call.D, y.kt, HALF, right, TILE, keys, x.dqt, TILE, pairs.columns, true);
    }

    // P and dS of one key, the j-th of its block, which all queries see, without options.
    void weigh(int64_t j, int64_t columns, const Queries& x, const Keys& y) const {
        const vf scale = splat((float)call.scale), f = splat(factor);
        const float *s = y.scores + j * TILE, *by = y.dp + j * TILE;
        for (int64_t i = 0; i < columns; i += 2 * W) {
            vf e[2], d[2];
            for (int64_t u = 0; u < 2; u++) {
                const int64_t at = i + u * W;
                e[u] = exp2<T::ROUGH>(fma(load(s + at) - load(x.highest + at), f, -load(x.log_sum + at)));
                d[u] = e[u] * (load(by + at) - load(x.delta + at));
                if (call.d_sinks) store(x.rest + at, load(x.rest + at) + d[u]);
                d[u] *= scale;
            }
            P::weights(p + j * TILE + i, e[0], e[1]);
            P::weights(ds + j * TILE + i, d[0], d[1]);
        }
    }

    struct Weighed {
        vf p, kept, dp, slope, far; // weight before and after dropout; its gradient; ds / d(q k); distance
        vi seen;
    };

    // The same for any block, with options.
    void weigh(int64_t j, const Pairs& pairs, const Queries& x, const Keys& y) {
        for (int64_t i = 0; i < pairs.columns; i += W) {
            const Weighed a = weighed(j, i, pairs, x, y);
            const vf d = a.p * (a.dp - load(x.delta + i)), some = a.seen ? d : vf{};
            P::weights(p + j * TILE + i, a.kept);
            P::weights(ds + j * TILE + i, some * a.slope);
            if (call.d_bias.data) store(y.bias + j * TILE + i, some);
            if (call.d_sinks || call.d_slopes) store(x.rest + i, load(x.rest + i) + some);
            if (!call.d_slopes) continue;
            store(x.steep + i, fma(some, a.far, load(x.steep + i)));
            store(x.far + i, fma(a.p, a.far, load(x.far + i)));
        }
    }

    struct Scored {
        vf s, slope, far; // the score, or the product; ds / d(q k); distance
        vi seen;
    };

    Scored scored(int64_t j, int64_t i, const Pairs& pairs, const Keys& y) const {
        const vf scale = splat((float)call.scale), far = distances(lanes() + splat((int32_t)(pairs.q + i + call.K - call.Q - pairs.key - j)));
        const float cap = (float)call.softcap;
        vf s = load(y.scores + j * TILE + i), slope = scale;
        if (!plain) {
            s *= scale;
            if (cap > 0) {
                s = capped(s, cap);
                const vf part = s * splat(1.0f / cap);
                slope = scale * (1.0f - part * part);
            }
            vf more = call.bias.data ? load(y.bias + j * TILE + i) : vf{};
            if (call.slopes) more -= splat(pairs.alibi) * far;
            s += more;
        }
        vi seen = splat(-1);
        if (!pairs.whole) {
            vi from, past, at = splat((int32_t)j);
            std::memcpy(&from, pairs.lo + i, sizeof from), std::memcpy(&past, pairs.hi + i, sizeof past);
            seen = (from <= at) & (at < past);
            if (pairs.block.bits >= 0) {
                vi bit;
                for (int64_t r = 0; r < W; r++) bit[r] = -(int32_t)(call.words[pairs.block.bits + i + r] >> j & 1);
                seen &= bit;
            }
        }
        return {s, slope, far, seen};
    }

    Weighed weighed(int64_t j, int64_t i, const Pairs& pairs, const Queries& x, const Keys& y) const {
        const Scored one = scored(j, i, pairs, y);
        vf e = exp2<6>(fma(one.s - load(x.highest + i), splat(factor), -load(x.log_sum + i)));
        if (!pairs.whole) e = one.seen ? e : vf{};
        vf kept = e, by = load(y.dp + j * TILE + i);
        if (call.dropout > 0) {
            vi row;
            std::memcpy(&row, x.drops + i, sizeof row);
            const vf times = keeps(call, row, splat((int32_t)(pairs.key + j))) ? splat(kept_scale(call)) : vf{};
            kept *= times, by *= times;
        }
        return {e, kept, by, one.slope, one.far, one.seen};
    }

    bool has_large(const Queries& x) const {
        bool found = false;
        for (int64_t r = 0; r < TILE; r++) found |= std::fabs(x.highest[r] * natural) > EXACT;
        return found;
    }

    // Compute highest and log_sum of a tile's rows from the scores as they are computed here. (The forward pass has
    // other scores for calls with few queries, which read keys in place.)
    void normalise(int64_t h, int64_t tile, const Queries& x) {
        const Sight sight = sight_of(call, b, h, tile);
        float tops[TILE], totals[TILE] = {};
        for (float& each : tops) each = -3.40282347e38f;
        for (int64_t n = sight.first; n < sight.past; n++) {
            const Pairs pairs(call, h, tile, sight, sight.block(n));
            const Keys& y = slots[few ? pairs.block.number : 0];
            if (!few) pack_keys(pairs.block.number, y), score(pairs, x, y);
            for (int64_t i = 0; i < pairs.columns; i += W)
                for (int64_t j = 0; j < pairs.keys; j++) {
                    const Scored one = scored(j, i, pairs, y);
                    const vf s = one.seen ? one.s : splat(-INFINITY), top = load(tops + i), to = max(s, top);
                    store(totals + i, fma(load(totals + i), exp2<6>((top - to) * factor), exp2<6>((s - to) * factor)));
                    store(tops + i, to);
                }
        }
        for (int64_t r = 0; r < TILE; r++) {
            double total = totals[r];
            if (!(total > 0.0)) continue; // the row sees no key, or has NaN
            if (call.sinks) total += std::exp2(((double)call.sinks[h] - (double)tops[r] * natural) * LOG2E);
            x.highest[r] = tops[r], x.log_sum[r] = (float)std::log2(total);
        }
    }

    // For a tile whose scores are all kept: make its weights add up to 1, although its scores may be rounded in another
    // order than in the forward pass, and compute delta from them, as a correction to the delta of `out`, which has
    // less rounding. Returns false if the weights of a row add up to another number by far.
    bool find_delta(int64_t h, int64_t tile, const Sight& sight, const Queries& x) const {
        float sums[TILE] = {}, totals[TILE] = {};
        for (int64_t n = sight.first; n < sight.past; n++) {
            const Pairs pairs(call, h, tile, sight, sight.block(n));
            for (int64_t i = 0; i < pairs.columns; i += W) {
                const vf delta = load(x.delta + i);
                for (int64_t j = 0; j < pairs.rows;) {
                    vf sum{}, total{}; // sums over 8 keys: sums of sums have smaller rounding errors
                    for (const int64_t past = j + 8; j < past; j++) {
                        const Weighed a = weighed(j, i, pairs, x, slots[pairs.block.number]);
                        sum += a.seen ? a.p * (a.dp - delta) : vf{}, total += a.p; // (keys that are not seen may have NaN)
                    }
                    store(sums + i, load(sums + i) + sum), store(totals + i, load(totals + i) + total);
                }
            }
        }
        bool found = true;
        for (int64_t r = 0; r < TILE; r++) {
            const float sink = call.sinks ? of_sink(h, r, x) : 0.0f, total = totals[r] + sink;
            const bool near = total > 0.5f && total < 2.0f; // not 0, nor NaN
            if (near) x.log_sum[r] += std::log2(total);
            found &= near || x.log_sum[r] == INFINITY; // the row sees no key
            x.delta[r] += near ? (sums[r] - sink * x.delta[r]) / total : 0.0f;
        }
        return found;
    }

    // The weight of the sink of a row.
    float of_sink(int64_t h, int64_t r, const Queries& x) const {
        return (float)std::exp2(((double)call.sinks[h] - (double)x.highest[r] * natural) * LOG2E - x.log_sum[r]);
    }

    // The bias of a block, as a table of keys by queries.
    void gather_bias(const Pairs& pairs, float* bias) const {
        const hw_tensor& t = call.bias;
        const float* x = (const float*)t.data + b * t.stride[0] + pairs.h * t.stride[1] + pairs.q * t.stride[2] + pairs.key * t.stride[3];
        std::memset(bias, 0, 4 * TILE * TILE);
        for (int64_t j = 0; j < pairs.keys; j++)
            for (int64_t i = 0; i < least(TILE, call.Q - pairs.q); i++) bias[j * TILE + i] = x[i * t.stride[2] + j * t.stride[3]];
    }

    // Add the gradients that `weigh` left in place of the bias.
    void add_bias(const Pairs& pairs, const float* bias) {
        const hw_tensor& t = call.d_bias;
        float* x = (float*)t.data + b * t.stride[0] + pairs.h * t.stride[1] + pairs.q * t.stride[2] + pairs.key * t.stride[3];
        for (int64_t i = 0; i < least(TILE, call.Q - pairs.q); i++)
            for (int64_t j = 0; j < pairs.keys; j++) x[i * t.stride[2] + j * t.stride[3]] += bias[j * TILE + i];
    }

    // Add a tile's share in the gradients of its head's slope and sink.
    void add_sums(int64_t head, int64_t tile, const Queries& x) {
        for (int64_t r = 0; r < least(TILE, call.Q - tile * TILE); r++) {
            if (x.log_sum[r] == INFINITY) continue; // the row sees no key
            const double share = call.sinks ? of_sink(g * heads + head, r, x) : 0.0;
            const double off = x.rest[r] - share * x.delta[r]; // 0 if delta were exact
            dslopes[head] -= x.steep[r] - off * x.far[r];
            dsinks[head] -= share * (x.delta[r] + off);
        }
    }

    void write_queries(int64_t h, int64_t tile, const Queries& x) {
        const hw_tensor& t = call.d_q;
        if (!t.data) return;
        const int64_t q = tile * TILE;
        for (int64_t r = 0; r < least(TILE, call.Q - q); r++)
            for (int64_t d = 0; d < call.D; d++) write_number(call.dtype, t.data, b * t.stride[0] + h * t.stride[1] + (q + r) * t.stride[2] + d * t.stride[3], x.dqt[d * TILE + r]);
    }
};

// The sum of the parts for the keys of a block. A row has `width` numbers, a multiple of W; the next part is `step`
// numbers further on.
static void join_keys(const hw_attention& call, const hw_tensor& t, int64_t n, int64_t matrix, int64_t key, const float* x, int64_t width, int64_t parts, int64_t step) {
    for (int64_t r = key; t.data && r < least(call.K, key + TILE); r++) {
        const int64_t at = matrix / call.G * t.stride[0] + matrix % call.G * t.stride[1] + r * t.stride[2];
        for (int64_t d = 0; d < n; d += W) {
            vf total{};
            for (int64_t part = 0; part < parts; part++) total += load(x + part * step + r * width + d);
            if (t.stride[3] == 1 && d + W <= n) write_vector(call.dtype, t.data, at + d, total);
            else for (int64_t j = 0; j < least(W, n - d); j++) write_number(call.dtype, t.data, at + (d + j) * t.stride[3], total[j]);
        }
    }
}

template <class T>
static int64_t backward(const hw_attention& call) {
    const int64_t all = (call.Q + TILE - 1) / TILE, matrices = call.B * call.G, heads = call.H / call.G;
    const int64_t parts = matrices < 8 ? least(all, (8 + matrices - 1) / matrices) : 1; // parts of each key head
    const int64_t tiles = (all + parts - 1) / parts;                                    // tiles of a part
    const int64_t keys = up(call.K, TILE), dw = up(call.D, T::COLUMNS), ew = up(call.E, T::COLUMNS);
    const int64_t size = keys * (dw + ew), floats = up(matrices * parts * size, 16);
    float* sums = (float*)std::aligned_alloc(64, up(4 * floats + 8 * matrices * parts * 2 * heads, 64)); // [B, G, parts, size]
    if (!sums) return 1;
    double* of_heads = (double*)(sums + floats); // [B, G, parts, 2, heads]: for d_slopes and d_sinks
    const int64_t code = over_with_memory(call.threads, matrices * parts, [&](int64_t piece) {
        const int64_t matrix = piece / parts, first = piece % parts * tiles;
        float *dk = sums + piece * size, *dv = dk + keys * dw;
        double *slopes = of_heads + piece * 2 * heads, *sinks = slopes + heads;
        const int64_t rows = least(keys, up(call.K, PART) + T::ROWS); // products also read rows after the last one
        std::memset(dk, 0, 4 * rows * dw), std::memset(dv, 0, 4 * rows * ew);
        std::memset(slopes, 0, 8 * 2 * heads);
        if (first >= all) return true;
        Backward<T> backward{call, matrix / call.G, matrix % call.G, first, least(all, first + tiles), dk, dv, slopes, sinks};
        if (!backward.prepare()) return false;
        backward.run();
        return true;
    });
    if (!code)
        over(call.threads, matrices * (keys / TILE), [&](int64_t piece) {
            const int64_t matrix = piece / (keys / TILE), key = piece % (keys / TILE) * TILE;
            const float* dk = sums + matrix * parts * size;
            join_keys(call, call.d_k, call.D, matrix, key, dk, dw, parts, size);
            join_keys(call, call.d_v, call.E, matrix, key, dk + keys * dw, ew, parts, size);
        });
    for (int64_t which = 0; which < 2 && !code; which++) {
        float* found = which ? call.d_sinks : call.d_slopes;
        for (int64_t h = 0; found && h < call.H; h++) {
            double total = 0;
            for (int64_t i = 0; i < call.B * parts; i++) total += of_heads[(((i / parts * call.G + h / heads) * parts + i % parts) * 2 + which) * heads + h % heads];
            found[h] = (float)total;
        }
    }
    std::free(sums);
    return code;
}

} // namespace ISA
