// One more token for each hypothesis of several texts: all layers of a decoder, and the logits. Texts are independent
// of one another, so each thread takes some of them through all layers, and the other texts do not change a text's
// result.
#pragma once

#include "linear.hpp"
#include "softmax.hpp"

namespace ISA {

// Sum of q k over n numbers.
INLINE float dot(const float* q, const float* k, int64_t n) {
    vf total{};
    int64_t d = 0;
    for (; d + W <= n; d += W) total = fma(load(q + d), load(k + d), total);
    float found = sum(total);
    for (; d < n; d++) found += q[d] * k[d];
    return found;
}

// The sum of weights times values, C vectors of it. value(i): the value of key i.
template <int C, class Value>
INLINE void weighted(const float* weights, int64_t count, int64_t d, const Value& value, float* out) {
    vf total[C] = {};
    for (int64_t i = 0; i < count; i++) {
        const float* v = value(i) + d;
        for (int c = 0; c < C; c++) total[c] = fma(splat(weights[i]), load(v + c * W), total[c]);
    }
    for (int c = 0; c < C; c++) store(out + d + c * W, total[c]);
}

// The attention output of one query. Its keys may be apart in memory: key(i), value(i). s: memory for all scores and
// one vector more.
template <class Key, class Value>
INLINE void attend_apart(const float* q, int64_t n, int64_t count, float scale, float* s, const Key& key, const Value& value, float* out) {
    vf top = splat(-INFINITY), total{};
    for (int64_t i = 0; i < count; i++) s[i] = scale * dot(q, key(i), n);
    for (int i = 0; i < W; i++) s[count + i] = -INFINITY;
    for (int64_t i = 0; i < count; i += W) {
        const vf x = load(s + i);
        top = (x > top) | (x != x) ? x : top; // NaN stays
    }
    const float highest_score = highest(top);
    for (int64_t i = 0; i < count; i += W) {
        const vf e = exp2<6>((load(s + i) - highest_score) * LOG2E);
        store(s + i, e);
        total += e;
    }
    const float by = 1.0f / sum(total);
    for (int64_t i = 0; i < count; i += W) store(s + i, load(s + i) * by);
    int64_t d = 0;
    for (; d + 4 * W <= n; d += 4 * W) weighted<4>(s, count, d, value, out);
    for (; d + W <= n; d += W) weighted<1>(s, count, d, value, out);
    for (; d < n; d++) {
        float found = 0.0f;
        for (int64_t i = 0; i < count; i++) found += s[i] * value(i)[d];
        out[d] = found;
    }
}

// Some texts and their state between the layers.
template <class T>
struct Step {
    const hw_decoder& call;
    const int64_t threads, first_text, past_text;
    const int64_t first = first_text * call.width, rows = (past_text - first_text) * call.width, depth = call.M / call.H;
    const int64_t M = padded(call.M), F = padded(call.F), Q = padded(3 * call.M);
    std::atomic<bool> failed{false};

    float *x = nullptr;     // [rows, M]: the residual stream
    float *y = nullptr;     // [rows, M or F]: the result of a product
    float *qkv = nullptr;   // [rows, Q]
    float *heads = nullptr; // [rows, M]: the output of attention
    float *row = nullptr;   // [M]: a row of a norm
    Left<T> left{}, hidden{}; // [rows, M] and [rows, F]

    bool prepare() {
        const int64_t all = up(rows, T::ROWS);
        const int64_t bytes[] = {4 * all * M, 4 * all * most(M, F), 4 * all * Q, 4 * all * M, 4 * M, 4 * all * Left<T>::units(M), 4 * all * Left<T>::units(F), 4 * all, 4 * all};
        void* places[9];
        if (!lay_out(bytes, places)) return false;
        x = (float*)places[0], y = (float*)places[1], qkv = (float*)places[2], heads = (float*)places[3], row = (float*)places[4];
        left = {(unit*)places[5], (float*)places[7], Left<T>::units(M)};
        hidden = {(unit*)places[6], (float*)places[8], Left<T>::units(F)};
        std::memset(y, 0, 4 * all * M);
        if (M != call.M) std::memset(heads, 0, 4 * all * M);
        return true;
    }

    bool run() {
        if (!prepare()) return false;
        for (int64_t r = 0; r < rows; r++) padded_row(call.x + (first + r) * call.M, call.M, x + r * M);
        for (int64_t i = 0; i < call.layers; i++) layer(i);
        norm(call.norm);
        if (call.hidden)
            for (int64_t r = 0; r < rows; r++) {
                std::memset(y + r * M, 0, 4 * M);
                add_norm(call.norm, call.M, y + r * M, x + r * M, row, call.rms);
                std::memcpy(call.hidden + (first + r) * call.M, row, 4 * call.M);
            }
        if (call.logits)
            product<T>(threads, call.vocabulary, call.M, call.V, left, rows, [&](int64_t r, int64_t j, vf z) {
                float* to = call.logits + (first + r) * call.V + j;
                if (j + W <= call.V) store(to, z);
                else for (int64_t i = 0; j + i < call.V; i++) to[i] = z[i];
            });
        return !failed;
    }

    // x += y, and the norm of x becomes the left side of the next product.
    void norm(const hw_norm& norm) {
        for (int64_t r = 0; r < rows; r++) {
            add_norm(norm, call.M, y + r * M, x + r * M, row, call.rms);
            left.take(r, row, M);
        }
    }

    // The product of the left side, [rows, N] in rows of `step` numbers.
    void times(const hw_weights& weights, const Left<T>& by, int64_t K, int64_t N, float* to, int64_t step) {
        product<T>(threads, weights, K, N, by, rows, [&](int64_t r, int64_t j, vf z) { store(to + r * step + j, z); });
    }

    void layer(int64_t number) {
        const hw_layer& layer = call.layer[number];
        norm(layer.attention_norm);
        times(layer.qkv, left, call.M, 3 * call.M, qkv, Q);
        for (int64_t r = 0; r < rows; r++) remember(number, r);
        over(threads, (past_text - first_text) * call.H, [&](int64_t i) { attend(number, i / call.H, i % call.H); });
        take_heads();
        times(layer.out, left, call.M, call.M, y, M);
        if (call.source_keys) {
            norm(layer.cross_norm);
            times(layer.cross_q, left, call.M, call.M, qkv, Q);
            over(threads, (past_text - first_text) * call.H, [&](int64_t i) { attend_source(number, i / call.H, i % call.H); });
            take_heads();
            times(layer.cross_out, left, call.M, call.M, y, M);
        }
        norm(layer.mlp_norm);
        if (layer.gate.data) times(layer.up, left, call.M, call.F, y, F);
        with_activation(call.activation, [&](auto activation) {
            product<T>(threads, layer.gate.data ? layer.gate : layer.up, call.M, call.F, left, rows, [&](int64_t r, int64_t j, vf z) {
                float* to = y + r * F + j;
                z = activated<activation()>(z);
                store(to, layer.gate.data ? load(to) * z : z);
            });
        });
        for (int64_t r = 0; r < rows; r++) hidden.take(r, y + r * F, F);
        times(layer.down, hidden, call.F, call.M, y, M);
    }

    void take_heads() {
        for (int64_t r = 0; r < rows; r++) left.take(r, heads + r * M, M);
    }

    // The position in keys and values at which a slot of a hypothesis begins.
    int64_t slot(int64_t number, int64_t text, int64_t place, int64_t hypothesis) const {
        return (((number * call.room + first_text + text) * call.slots + place) * call.width + hypothesis) * call.M;
    }

    // Rotate query and key of a row, and store key and value.
    void remember(int64_t number, int64_t r) {
        const int64_t text = r / call.width, place = call.places[first_text + text];
        float *q = qkv + r * Q, *k = q + call.M;
        if (call.cos) turn(q, 2 * call.M, depth, call.turned, call.cos + place * call.turned, call.sin + place * call.turned);
        const int64_t to = slot(number, text, place, r % call.width);
        std::memcpy(call.keys + to, k, 4 * call.M);
        std::memcpy(call.values + to, k + call.M, 4 * call.M);
    }

    void attend(int64_t number, int64_t text, int64_t head) {
        const int64_t place = call.places[first_text + text];
        float* s = room_for(place + 1);
        if (!s) return;
        for (int64_t j = 0; j < call.width; j++) {
            const int64_t r = text * call.width + j, *past = call.past + (first + r) * call.slots;
            const auto at = [&](int64_t i) { return slot(number, text, i, i < place ? past[i] : j) + head * depth; };
            const auto key = [&](int64_t i) { return call.keys + at(i); };
            const auto value = [&](int64_t i) { return call.values + at(i); };
            attend_apart(qkv + r * Q + head * depth, depth, place + 1, (float)call.scale, s, key, value, heads + r * M + head * depth);
        }
    }

    void attend_source(int64_t number, int64_t text, int64_t head) {
        const int64_t count = call.lengths[first_text + text];
        const int64_t begin = (number * call.source_room + first_text + text) * call.source_slots * call.M + head * depth;
        float* s = room_for(count);
        if (!s) return;
        const auto key = [&](int64_t i) { return call.source_keys + begin + i * call.M; };
        const auto value = [&](int64_t i) { return call.source_values + begin + i * call.M; };
        for (int64_t r = text * call.width; r < (text + 1) * call.width; r++)
            attend_apart(qkv + r * Q + head * depth, depth, count, (float)call.cross_scale, s, key, value, heads + r * M + head * depth);
    }

    float* room_for(int64_t count) {
        float* s = (float*)hw::scratch(0, 4 * (count + W));
        if (!s) failed = true;
        return s;
    }
};

template <class T>
static int64_t decoder(const hw_decoder& call) {
    const int64_t texts = call.T / call.width, shares = least(texts, call.threads);
    const int64_t groups = 2 * shares > call.threads ? shares : 1, inside = groups == 1 ? call.threads : 1;
    return over_with_memory(inside == 1 ? call.threads : 1, texts ? groups : 0, [&](int64_t i) { return Step<T>{call, inside, i * texts / groups, (i + 1) * texts / groups}.run(); });
}

} // namespace ISA
