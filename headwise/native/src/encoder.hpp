// The layers of an encoder over texts that are packed one after the other. A group of texts goes through all layers, so
// that it stays in the cache.
#pragma once

#include "forward.hpp"
#include "linear.hpp"

#include <type_traits>

namespace ISA {

constexpr int64_t GROUP = 144; // approximate number of tokens in a group of texts

// A group of texts and its state between the layers.
template <class T>
struct Group {
    // Queries, keys and values are floats, or bf16.
    static constexpr bool FLOATS = std::is_same_v<T, Float32>;
    static constexpr int64_t KIND = FLOATS ? HW_FLOAT32 : HW_BFLOAT16, SIZE = FLOATS ? 4 : 2;
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16)
    typedef std::conditional_t<FLOATS, Float32, BFloat16> Attends;
#else
    typedef Float32 Attends;
#endif
    const hw_encoder& call;
    const int64_t threads, first_text, past_text;
    const int64_t begin = call.first[first_text], rows = call.first[past_text] - begin;
    const int64_t M = padded(call.M), F = padded(call.F), Q = padded(3 * call.M), block = least(BLOCK, up(rows, T::ROWS));
    std::atomic<bool> failed{false};

    float *x = nullptr;    // [rows, M]: the residual stream
    float *y = nullptr;    // [block, M or F]: the result of a product
    char *qkv = nullptr;   // [rows, Q]
    char *heads = nullptr; // [rows, M]: the output of attention
    float *row = nullptr;  // [M]: a row of a norm before a branch
    Left<T> left{};        // [rows, M]: x, or the heads, as the left side of a product
    Left<T> hidden{};      // [block, F]

    bool prepare() {
        const int64_t all = up(rows, T::ROWS), width = T::PAIR == 4 ? most(M, F) : M;
        const int64_t bytes[] = {4 * all * M, 4 * block * width, SIZE * all * Q, SIZE * all * M, 4 * all * Left<T>::units(M), 4 * block * Left<T>::units(F), 4 * all, 4 * block, 4 * M};
        void* places[9];
        if (!lay_out(bytes, places)) return false;
        x = (float*)places[0], y = (float*)places[1], qkv = (char*)places[2], heads = (char*)places[3];
        left = {(unit*)places[4], (float*)places[6], Left<T>::units(M)};
        hidden = {(unit*)places[5], (float*)places[7], Left<T>::units(F)};
        row = (float*)places[8];
        if (M != call.M) std::memset(heads, 0, SIZE * all * M);
        return true;
    }

    bool run() {
        if (!prepare()) return false;
        for (int64_t r = 0; r < rows; r++) {
            begin_row(begin + r, x + r * M);
            if (!call.last) left.take(r, x + r * M, M);
        }
        if (call.last) {
            std::memset(y, 0, 4 * block * M);
            for (int64_t b = 0; b < rows; b += block) norm(call.layer[0].attention_norm, b, least(block, rows - b), row);
        }
        for (int64_t i = 0; i < call.layers; i++) layer(i);
        for (int64_t r = 0; r < rows; r++) std::memcpy(call.x + (begin + r) * call.M, x + r * M, 4 * call.M);
        return !failed;
    }

    // The input of the first layer for token t.
    void begin_row(int64_t t, float* to) {
        const hw_embeddings& tables = call.embeddings;
        if (!tables.ids) return padded_row(call.x + t * call.M, call.M, to);
        const float *word = tables.word + tables.ids[t] * call.M, *type = tables.type + tables.types[t] * call.M;
        padded_row(tables.position + tables.places[t] * call.M, call.M, to);
        std::memset(y + call.M, 0, 4 * (M - call.M));
        for (int64_t j = 0; j < call.M; j++) y[j] = word[j] + type[j];
        add_norm(tables.norm, call.M, y, to, to);
    }

    void layer(int64_t number) {
        const hw_layer& layer = call.layer[number];
        for (int64_t b = 0; b < rows; b += block)
            product<T>(threads, layer.qkv, call.M, 3 * call.M, left.from(b), least(block, rows - b), [&](int64_t r, int64_t j, vf z) { write_vector(KIND, qkv + (b + r) * SIZE * Q, j, z); });
        if (call.qkv)
            for (int64_t r = 0; r < rows; r++) std::memcpy((char*)call.qkv + (number * call.T + begin + r) * SIZE * 3 * call.M, qkv + r * SIZE * Q, SIZE * 3 * call.M);
        if (call.cos) turn_rows();
        over(threads, (past_text - first_text) * call.H, [&](int64_t i) { attend(first_text + i / call.H, i % call.H); });
        for (int64_t b = 0; b < rows; b += block) {
            const int64_t some = least(block, rows - b);
            const Left<T> mine = left.from(b);
            take_heads(call.gates ? call.gates + number * call.H : nullptr, b, some);
            const auto to_y = [&](int64_t r, int64_t j, vf z) { store(y + r * M + j, z); };
            product<T>(threads, layer.out, call.M, call.M, mine, some, to_y);
            norm(call.last ? layer.mlp_norm : layer.attention_norm, b, some, call.last ? row : nullptr);
            with_activation(call.activation, [&](auto activation) { up_to_hidden(layer.up, activation, mine, some); });
            product<T>(threads, layer.down, call.F, call.M, hidden, some, to_y);
            if (!call.last) norm(layer.mlp_norm, b, some, nullptr);
            else if (number + 1 < call.layers) norm(call.layer[number + 1].attention_norm, b, some, row);
            else norm(*call.last, b, some, nullptr);
        }
    }

    template <class A>
    void up_to_hidden(const hw_weights& weights, A activation, const Left<T>& mine, int64_t some) {
        product<T>(threads, weights, call.M, call.F, mine, some, [&](int64_t r, int64_t j, vf z) {
            z = activated<activation()>(z);
            if constexpr (T::PAIR == 4) store(y + r * F + j, z);
            else hidden.put(r, j, z);
        });
        if constexpr (T::PAIR == 4)
            for (int64_t r = 0; r < some; r++) hidden.take(r, y + r * F, F);
    }

    // Make the heads' output of some rows, times their gates, the left side of a product.
    void take_heads(const float* gates, int64_t b, int64_t some) {
        for (int64_t r = b; r < b + some; r++) {
            if (T::PAIR * SIZE == 4 && !gates) std::memcpy(left.row(r), heads + r * SIZE * M, SIZE * M);
            else {
                floats_of<KIND>(heads, r * M, 1, M, y);
                for (int64_t h = 0, depth = call.M / call.H; gates && h < call.H; h++)
                    for (int64_t j = h * depth; j < (h + 1) * depth; j++) y[j] = gates[h] == 0.0f ? 0.0f : y[j] * gates[h];
                left.take(r, y, M);
            }
        }
    }

    // The norm of x += y, as the left side of the next product; it replaces x, unless it is written `to` another place.
    void norm(const hw_norm& norm, int64_t b, int64_t some, float* to) {
        for (int64_t r = 0; r < some; r++) {
            float *from = x + (b + r) * M, *found = to ? to : from;
            add_norm(norm, call.M, y + r * M, from, found);
            left.take(b + r, found, M);
        }
    }

    void turn_rows() {
        for (int64_t text = first_text; text < past_text; text++)
            for (int64_t i = 0; i < call.first[text + 1] - call.first[text]; i++)
                turn((float*)qkv + (call.first[text] - begin + i) * Q, 2 * call.M, call.M / call.H, call.turned, call.cos + i * call.turned, call.sin + i * call.turned);
    }

    void attend(int64_t text, int64_t head) {
        const int64_t from = call.first[text] - begin, length = call.first[text + 1] - call.first[text], depth = call.M / call.H;
        if (!length) return;
        hw_attention one{};
        char* q = qkv + SIZE * (from * Q + head * depth);
        one.dtype = one.cache_dtype = KIND, one.threads = one.B = one.H = one.G = 1;
        one.Q = one.K = length, one.D = one.E = depth, one.scale = call.scale;
        one.q = {q, {0, 0, Q, 1}}, one.k = {q + SIZE * call.M, {0, 0, Q, 1}}, one.v = {q + 2 * SIZE * call.M, {0, 0, Q, 1}};
        one.out = {heads + SIZE * (from * M + head * depth), {0, 0, M, 1}};
        Forward<Attends> forward{one, 0, 0, 0, (length + TILE - 1) / TILE};
        if (!forward.prepare()) failed = true;
        else forward.run();
    }
};

// Threads take different groups; if there are fewer groups than threads, all threads compute each group together.
template <class T>
static int64_t encoder(const hw_encoder& call) {
    const int64_t most_groups = call.T / GROUP + 1;
    int64_t* begins = (int64_t*)hw::scratch(5, 8 * (most_groups + 2));
    if (!begins) return 1;
    int64_t groups = 0;
    begins[0] = 0;
    for (int64_t text = 0; text < call.texts; text++)
        if (call.first[text + 1] - call.first[begins[groups]] >= GROUP || text + 1 == call.texts) begins[++groups] = text + 1;
    const int64_t inside = groups < 2 * call.threads ? call.threads : 1;
    return over_with_memory(inside == 1 ? call.threads : 1, groups, [&](int64_t i) { return Group<T>{call, inside, begins[i], begins[i + 1]}.run(); });
}

} // namespace ISA
