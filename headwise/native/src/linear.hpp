// Linear layers of packed weights: rows as the left side of a product, the product, and what follows it while the result
// is in the cache.
#pragma once

#include "activation.hpp"
#include "tile.hpp"

#include <type_traits>

namespace ISA {

constexpr int64_t PANEL = 64;  // columns of packed weights that a thread takes
constexpr int64_t STRIP_WIDTH = REGISTERS * W; // columns that are next to one another: those of a product in registers
static_assert(PANEL % STRIP_WIDTH == 0, "a panel has whole strips");
constexpr int64_t BLOCK = 96;  // rows that are computed together: a multiple of ROWS of every product

INLINE int64_t padded(int64_t n) { return up(n, PANEL); }

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16)
typedef BFloat16 Half;
#else
// Where no instruction multiplies bf16, weights of bf16 become floats, some units of a strip at a time.
struct Half : Float32 {};
#endif
template <class T> constexpr bool WIDENS = std::is_same_v<T, Half> && T::PAIR == 1;
constexpr int64_t WIDENED = 128; // units of a strip that are widened together: their floats stay in the first cache

// Addresses of N pieces of memory of these sizes in bytes, aligned to 64, in memory of this thread. False if there is
// not enough memory.
template <int N>
INLINE bool lay_out(const int64_t (&bytes)[N], void* (&places)[N]) {
    int64_t total = 0;
    for (int64_t each : bytes) total += up(each, 64);
    char* at = (char*)hw::scratch(4, total);
    if (!at) return false;
    for (int i = 0; i < N; i++) places[i] = at, at += up(bytes[i], 64);
    return true;
}

// Rows of floats, padded, as the left side of products by T.
template <class T> struct Left {
    unit* data;
    float* scale; // of int8: the number by which a row was divided
    int64_t step; // units from row to row

    static int64_t units(int64_t n) { return padded(n) / T::PAIR * T::LEFT_UNITS; }
    unit* row(int64_t r) const { return data + r * step; }
    Left from(int64_t r) const { return {data + r * step, scale + r, step}; }

    // Store row r, of n floats.
    MEMBER void take(int64_t r, const float* x, int64_t n) const {
        if constexpr (T::PAIR == 1) std::memcpy(row(r), x, 4 * n);
        else if constexpr (T::PAIR == 2) for (int64_t j = 0; j < n; j += W) put(r, j, load(x + j));
        else {
            vf top{};
            for (int64_t j = 0; j < n; j += W) {
                const vf size = (vf)((vi)load(x + j) & splat(0x7fffffff));
                top = (size > top) | (size != size) ? size : top; // NaN stays, so that the row becomes NaN
            }
            const float largest = highest(top), by = largest > 0.0f ? 127.0f / largest : 0.0f;
            scale[r] = largest / 127.0f;
            for (int64_t j = 0; j < n; j += W) put_bytes(row(r) + j / T::PAIR * T::LEFT_UNITS, fma(load(x + j), splat(by), splat(128.5f)));
        }
    }
    // Store floats or bf16 at column j of row r.
    MEMBER void put(int64_t r, int64_t j, vf x) const {
        if constexpr (T::PAIR == 1) store((float*)row(r) + j, x);
        else write_vector(HW_BFLOAT16, row(r), j, x);
    }
    // Store the whole part of numbers from 1 to 256, 128 more than the rounded numbers, with another zero where that is asked.
    MEMBER void put_bytes(unit* to, vf x) const {
        const vi all = (__builtin_convertvector(x, vi) - (128 - ZERO_OF_A)) & 255; // (for NaN any byte will do)
#if defined(__ARM_FEATURE_DOTPROD)
        const uint8x16_t lowest = {0, 4, 8, 12}; // bytes of the four numbers (GCC would take one number after another)
        *to = ((vu)vqtbl1q_u8((uint8x16_t)all, lowest))[0];
#elif defined(HAS_BYTES)
        typedef uint8_t bytes __attribute__((vector_size(W)));
        const bytes y = __builtin_convertvector(all, bytes);
        std::memcpy(to, &y, sizeof y);
#else
        const vi both = all | (vi)rotated<2>((vf)all) << 16;
        for (int i = 0; i < W; i += 4) std::memcpy(to + i / 2, (const char*)&both + 4 * i, 8);
#endif
    }
};

// W numbers of a row, from the result of a product in registers: with scale, offset and bias. The offset is subtracted
// from the integers, so that int8 is the same with every instruction set, however large the sums.
template <class T>
INLINE vf finished(vf c, const hw_weights& w, int64_t column, vf scale) {
    const vf bias = load(w.bias + column);
    if constexpr (T::PAIR < 4) return c + bias;
    else {
        const vi total = ZERO_OF_A == 0 ? (vi)c : (vi)c - __builtin_convertvector(load(w.offset + column), vi);
        return fma(__builtin_convertvector(total, vf), scale * load(w.scale + column), bias);
    }
}

// The product of some rows and one strip of weights: c [rows, STRIP_WIDTH]. `b`: the strip, with so many units of A.
template <class T>
INLINE void strip_of(const Left<T>& x, int64_t rows, const float* b, int64_t units, float* c) {
    if constexpr (!WIDENS<T>) {
        constexpr int64_t is = T::LEFT_UNITS;
        for (int64_t r = 0; r < rows; r += T::ROWS)
            T::product(least(T::ROWS, rows - r), x.row(r), x.step, is, b, STRIP_WIDTH, units / is, c + r * STRIP_WIDTH, STRIP_WIDTH, STRIP_WIDTH, false);
    } else {
        alignas(64) float wide[2 * WIDENED * STRIP_WIDTH];
        for (int64_t i = 0; i < units / 2; i += WIDENED) {
            const int64_t some = least(WIDENED, units / 2 - i);
            for (int64_t u = 0; u < some; u++)
                for (int64_t j = 0; j < STRIP_WIDTH; j += W) {
                    const vu pairs = (vu)load(b + (i + u) * STRIP_WIDTH + j);
                    store(wide + 2 * u * STRIP_WIDTH + j, (vf)(pairs << 16)), store(wide + (2 * u + 1) * STRIP_WIDTH + j, (vf)(pairs & 0xffff0000u));
                }
            for (int64_t r = 0; r < rows; r += T::ROWS)
                T::product(least(T::ROWS, rows - r), x.row(r) + 2 * i, x.step, 1, wide, STRIP_WIDTH, 2 * some, c + r * STRIP_WIDTH, STRIP_WIDTH, STRIP_WIDTH, i > 0);
        }
    }
}

// Panels of the product of some rows and weights with K inputs; each(row, column, W numbers) takes the result.
template <class T, class Each>
INLINE void panels_of(const hw_weights& w, int64_t K, const Left<T>& x, int64_t rows, int64_t panel, int64_t past, const Each& each) {
    const Products products;
    const int64_t units = Left<T>::units(K), of_weights = padded(K) / (WIDENS<T> ? 2 : T::PAIR);
    constexpr int64_t together = WIDENS<T> ? BLOCK : T::ROWS;
    alignas(64) float c[together * STRIP_WIDTH];
    for (int64_t column = panel * PANEL; column < past * PANEL; column += STRIP_WIDTH)
        for (int64_t first = 0; first < rows; first += together) {
            const int64_t some = least(together, rows - first);
            strip_of<T>(x.from(first), some, (const float*)w.data + column * of_weights, units, c);
            for (int64_t r = 0; r < some; r++) {
                const vf scale = splat(T::PAIR < 4 ? 1.0f : x.scale[first + r]);
                for (int64_t j = 0; j < STRIP_WIDTH; j += W)
                    each(first + r, column + j, finished<T>(load(c + r * STRIP_WIDTH + j), w, column + j, scale));
            }
        }
}

// The product for all N outputs. Threads share panels, and also rows if there are more threads than panels.
template <class T, class Each>
static void product(int64_t threads, const hw_weights& w, int64_t K, int64_t N, const Left<T>& x, int64_t rows, const Each& each) {
    const int64_t panels = padded(N) / PANEL;
    if (threads == 1) return panels_of<T>(w, K, x, rows, 0, panels, each);
    int64_t height = rows;
    while (height > T::ROWS && panels * ((rows + height - 1) / height) < 2 * threads) height = up((height + 1) / 2, T::ROWS);
    over(threads, panels * ((rows + height - 1) / height), [&](int64_t piece) {
        const int64_t first = piece / panels * height, panel = piece % panels;
        panels_of<T>(w, K, x.from(first), least(height, rows - first), panel, panel + 1, [&](int64_t r, int64_t j, vf y) { each(first + r, j, y); });
    });
}

// x += y, then LayerNorm(x) or RMSNorm(x), of M numbers, in rows padded with zeros. The norm is written to `to`, which
// may be x.
INLINE void add_norm(const hw_norm& norm, int64_t M, const float* y, float* x, float* to, bool rms = false) {
    const int64_t width = padded(M);
    vf total{}, squares{};
    for (int64_t j = 0; j < width; j += W) {
        const vf sum = load(x + j) + load(y + j);
        store(x + j, sum);
        total += sum;
    }
    const float mean = rms ? 0.0f : sum(total) / (float)M;
    for (int64_t j = 0; j < width; j += W) {
        const vf apart = load(x + j) - mean;
        squares = fma(apart, apart, squares);
    }
    const float variance = (sum(squares) - (float)(width - M) * mean * mean) / (float)M;
    const float by = 1.0f / std::sqrt(variance + (float)norm.eps);
    for (int64_t j = 0; j < width; j += W) store(to + j, fma((load(x + j) - mean) * by, load(norm.weight + j), load(norm.bias + j)));
}

// Rotate every head of `depth` numbers among n: dimensions i and i + turned by the angle i of a position.
INLINE void turn(float* x, int64_t n, int64_t depth, int64_t turned, const float* cos, const float* sin) {
    for (float* past = x + n; x < past; x += depth)
        for (int64_t i = 0; i < turned; i++) {
            const float a = x[i], b = x[i + turned];
            x[i] = a * cos[i] - b * sin[i], x[i + turned] = b * cos[i] + a * sin[i];
        }
}

// Call f with the activation as a constant.
template <class F>
INLINE void with_activation(int64_t activation, F f) {
    switch (activation) {
    case HW_RELU: return f(std::integral_constant<int, HW_RELU>());
    case HW_GELU: return f(std::integral_constant<int, HW_GELU>());
    case HW_GELU_TANH: return f(std::integral_constant<int, HW_GELU_TANH>());
    case HW_SILU: return f(std::integral_constant<int, HW_SILU>());
    default: return f(std::integral_constant<int, HW_IDENTITY>());
    }
}

// A row of n numbers, padded with zeros.
INLINE void padded_row(const float* x, int64_t n, float* to) {
    std::memcpy(to, x, 4 * n);
    std::memset(to + n, 0, 4 * (padded(n) - n));
}

// One linear layer, for some rows from `first`.
template <class T>
static bool linear_block(const hw_linear& call, int64_t threads, int64_t first) {
    const int64_t K = padded(call.K), N = padded(call.N), rows = least(BLOCK, call.T - first), units = Left<T>::units(call.K);
    char* at = (char*)hw::scratch(4, 4 * BLOCK * (units + 1 + N) + 4 * (K + N));
    if (!at) return false;
    float *y = (float*)at, *row = y + BLOCK * N, *scale = row + K + N;
    const Left<T> x{(unit*)(scale + BLOCK), scale, units};
    for (int64_t r = 0; r < rows; r++) {
        padded_row(call.x + (first + r) * call.K, call.K, row);
        x.take(r, row, K);
    }
    with_activation(call.activation, [&](auto activation) {
        product<T>(threads, call.weights, call.K, call.N, x, rows, [&](int64_t r, int64_t j, vf z) { store(y + r * N + j, activated<activation()>(z)); });
    });
    for (int64_t r = 0; r < rows; r++) {
        const float* from = y + r * N;
        if (call.residual) {
            padded_row(call.residual + (first + r) * call.N, call.N, row + K);
            add_norm(call.norm, call.N, from, row + K, row + K);
            from = row + K;
        }
        std::memcpy(call.y + (first + r) * call.N, from, 4 * call.N);
    }
    return true;
}

template <class T>
static int64_t linear(const hw_linear& call) {
    const int64_t blocks = (call.T + BLOCK - 1) / BLOCK, inside = blocks < 2 * call.threads ? call.threads : 1;
    return over_with_memory(inside == 1 ? call.threads : 1, blocks, [&](int64_t i) { return linear_block<T>(call, inside, i * BLOCK); });
}

} // namespace ISA
