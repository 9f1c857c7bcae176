// The softmax of rows whose scores come a few blocks of keys at a time (Milakov and Gimelshein 2018), and the results
// from it: log-sum-exp, entropy, distance, the largest weight, the weight on some keys, and the output.
#pragma once

#include "tile.hpp"

namespace ISA {

// The state of a row. x = (s - reference) log2(e): scores relative to a reference, in units of log 2.
struct Row {
    float total[W];                // sums of e = 2^x, each over the keys of one lane
    float product[W], distance[W]; // sums of e x and of e |i - j|
    float reference;               // a score at most SLACK below the highest; -inf before the first
    float on_keys;                 // sum of e over call.keys
    float best;                    // the highest score, if call.top is set
    int32_t best_key;

    void clear() {
        std::memset(this, 0, sizeof *this);
        reference = best = -INFINITY;
    }
};

template <class T>
struct Softmax {
    typedef Packed<T> P;
    typedef typename P::Weight Weight;

    const hw_attention& call;
    const int64_t b;
    const int64_t width; // width of an output so far
    const bool plain = are_products(call);                  // then `s` holds products
    const float natural = plain ? (float)call.scale : 1.0f; // the factor from products to scores
    const float factor = natural * LOG2E, slack = SLACK / factor;
    bool odd = false;

    // The weights p of one row from its products s, in the columns [from, past) of some blocks side by side, of which
    // blocks[0] is the first. r: the row's place in the tile, which begins at query q.
    MEMBER void soften(int64_t h, int64_t q, int64_t r, const Sight& sight, const Block* blocks, int64_t from, int64_t past, float* s, Weight* p, float* out, Row& mine) const {
        const int64_t key = blocks->number * TILE;
        if (!plain) transform(call, b, h, q + r, key, from, past, s);
        hide(call, sight, blocks, r, from, past, s);
        vf top = load(s + from), other = load(s + past - W);
        for (int64_t x = from + W; x < past - W; x += 2 * W) top = max(load(s + x), top), other = max(load(s + least(x + W, past - W)), other);
        top = max(top, other);
        const vf f = splat(factor);
        if (any_above(top, splat(mine.reference + slack))) refer(highest(top), out, mine);
        if (call.top && any_above(top, splat(mine.best))) find_best(highest(top == top ? top : splat(-INFINITY)), key, from, past, s, mine);
        for (int64_t i = 0; call.at_keys && i < call.key_count; i++) {
            const int64_t x = call.keys[(b * call.H + h) * call.key_count + i] - key;
            if (from <= x && x < past) add_key(s[x], mine);
        }
        const float reference = mine.reference;
        if (reference == -INFINITY) { // the row has seen no key yet, or only NaN
            vf total = load(mine.total);
            for (int64_t x = from; x < past; x += W) {
                const vf e = load(s + x) == -INFINITY ? vf{} : load(s + x);
                total += e;
                P::weights(p + x, e);
            }
            store(mine.total, total);
            return;
        }
        const vf m = splat(reference);
        vf total = load(mine.total);
        if (!call.entropy && !call.distance) {
            const auto e = [&](int64_t x) __attribute__((always_inline)) { return exp2<T::ROUGH>((load(s + x) - m) * f); };
            int64_t x = from;
            for (; x + 2 * W <= past; x += 2 * W) {
                const vf one = e(x), two = e(x + W);
                total += one, total += two;
                P::weights(p + x, one, two);
            }
            if (T::COLUMNS < 2 * W && x < past) {
                const vf one = e(x);
                total += one;
                P::weights(p + x, one);
            }
        } else {
            vf product = load(mine.product), distance = load(mine.distance);
            vf apart = __builtin_convertvector(lanes() + splat((int32_t)(key + from - (q + r + call.K - call.Q))), vf);
            const auto e = [&](int64_t x) __attribute__((always_inline)) {
                const vf y = (load(s + x) - m) * f, e = exp2<T::DEGREE>(y);
                total += e;
                product = fma(e, max(y, splat(-200.0f)), product); // not 0 times -inf
                distance = fma(e, (vf)((vi)apart & splat(0x7fffffff)), distance);
                apart += splat((float)W);
                return e;
            };
            int64_t x = from;
            for (; x + 2 * W <= past; x += 2 * W) {
                const vf one = e(x);
                P::weights(p + x, one, e(x + W));
            }
            if (T::COLUMNS < 2 * W && x < past) P::weights(p + x, e(x));
            store(mine.product, product), store(mine.distance, distance);
        }
        store(mine.total, total);
        if (call.dropout > 0) {
            const uint32_t row = row_of_drops(call, b, h, q + r);
            for (int64_t x = from; x < past; x += W) {
                const vi kept = keeps(call, splat((int32_t)row), lanes() + splat((int32_t)(key + x)));
                for (int64_t j = 0; j < W; j++) p[x + j] = kept[j] ? p[x + j] : Weight{};
            }
        }
    }

    __attribute__((noinline)) void find_best(float score, int64_t key, int64_t from, int64_t past, const float* s, Row& mine) const {
        mine.best = score;
        for (int64_t x = from; x < past; x += W)
            if (const uint32_t here = bits_of(load(s + x) == score)) {
                mine.best_key = (int32_t)(key + x + __builtin_ctz(here));
                return;
            }
    }

    __attribute__((noinline)) void add_key(float s, Row& mine) const {
        if (s != -INFINITY) mine.on_keys += mine.reference == -INFINITY ? s : std::exp2((s - mine.reference) * factor);
    }

    // Change the reference of the state of a row.
    __attribute__((noinline)) void refer(float to, float* out, Row& mine) const {
        const bool nothing = mine.reference == -INFINITY;
        const float down = (mine.reference - to) * factor;
        mine.reference = to;
        if (nothing) return;
        const vf by = splat(std::exp2(down)), total = load(mine.total);
        store(mine.product, by * (load(mine.product) + splat(bounded(down)) * total));
        store(mine.total, by * total);
        store(mine.distance, by * load(mine.distance));
        mine.on_keys *= by[0];
        for (int64_t e = 0; e < width; e += W) store(out + e, by * load(out + e));
    }

    // Add the state of a row from other keys to its state.
    void add(float* out, Row& mine, float* more, Row& other) const {
        const float to = mine.reference > other.reference || mine.reference != mine.reference ? mine.reference : other.reference;
        if (mine.reference != to) refer(to, out, mine);
        if (other.reference != to) refer(to, more, other);
        store(mine.total, load(mine.total) + load(other.total));
        store(mine.product, load(mine.product) + load(other.product));
        store(mine.distance, load(mine.distance) + load(other.distance));
        mine.on_keys += other.on_keys;
        if (other.best > mine.best) mine.best = other.best, mine.best_key = other.best_key;
        for (int64_t e = 0; e < width; e += W) store(out + e, load(out + e) + load(more + e));
    }

    // Write the results for one row.
    void finish(int64_t h, int64_t row, const float* out, const Row& mine) {
        const float inverse = answer(call, b, h, row, scored(mine.reference, natural), sum(load(mine.total)), sum(load(mine.product)), sum(load(mine.distance)));
        const int64_t at = (b * call.H + h) * call.Q + row;
        if (call.at_keys) call.at_keys[at] = mine.on_keys * inverse;
        if (call.top) call.top_weights[at] = mine.best == -INFINITY ? inverse - inverse : std::exp2((mine.best - mine.reference) * factor) * inverse, call.top_keys[at] = mine.best_key;
        if (call.out.data) write(h, row, out, inverse * kept_scale(call));
    }

    // Set call.odd. Several threads may do this.
    void tell_odd() const {
        if (odd && call.odd) __atomic_store_n(call.odd, 1, __ATOMIC_RELAXED);
    }

    void write(int64_t h, int64_t row, const float* x, float inverse) {
        const hw_tensor& t = call.out;
        const int64_t place = b * t.stride[0] + h * t.stride[1] + row * t.stride[2];
        vf check{};
        for (int64_t e = 0; e < call.E; e += W) {
            const vf y = load(x + e) * splat(inverse);
            check += y - y; // 0, or NaN
            const int64_t count = least(W, call.E - e);
            if (t.stride[3] == 1 && count == W) write_vector(call.dtype, t.data, place + e, y);
            else for (int64_t j = 0; j < count; j++) write_number(call.dtype, t.data, place + (e + j) * t.stride[3], y[j]);
        }
        odd |= sum(check) != 0.0f;
    }
};

} // namespace ISA
