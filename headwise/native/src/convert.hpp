// Numbers of the call's dtype as floats or units, and back; and tables of them in the order that products read.
#pragma once

#include "../headwise.h"
#include "product.hpp"

namespace ISA {

INLINE float of_half(uint16_t bits) {
#if defined(__F16C__)
    return _cvtsh_ss(bits);
#elif defined(__aarch64__)
    __fp16 x;
    std::memcpy(&x, &bits, 2);
    return x;
#else
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, fraction = bits & 1023;
    uint32_t word;
    if (exponent == 31) word = sign | 0x7f800000 | fraction << 13;
    else if (exponent) word = sign | (exponent + 112) << 23 | fraction << 13;
    else {
        const float small = (float)fraction * 5.9604645e-8f; // 2^-24
        std::memcpy(&word, &small, 4);
        word |= sign;
    }
    float x;
    std::memcpy(&x, &word, 4);
    return x;
#endif
}

INLINE uint16_t to_half(float x) {
#if defined(__F16C__)
    return _cvtss_sh(x, 0);
#elif defined(__aarch64__)
    const __fp16 y = (__fp16)x;
    uint16_t bits;
    std::memcpy(&bits, &y, 2);
    return bits;
#else
    uint32_t word;
    std::memcpy(&word, &x, 4);
    const uint16_t sign = word >> 16 & 0x8000;
    const float size = std::fabs(x);
    if (x != x) return sign | 0x7e00;
    if (size >= 65520.0f) return sign | 0x7c00;
    if (size < 6.1035156e-5f) return sign | (uint16_t)std::nearbyint(size * 16777216.0f); // in steps of 2^-24
    word += 0xfff + (word >> 13 & 1);
    return sign | (uint16_t)((word >> 13 & 0x3ffff) - (112 << 10));
#endif
}

INLINE uint16_t to_bfloat(float x) {
    uint32_t word;
    std::memcpy(&word, &x, 4);
    if (x != x) return 0x7fc0;
    return (uint16_t)((word + 0x7fff + (word >> 16 & 1)) >> 16);
}

INLINE float of_bfloat(uint16_t bits) {
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    std::memcpy(&x, &word, 4);
    return x;
}

INLINE float number(int64_t dtype, const void* data, int64_t at) {
    if (dtype == HW_FLOAT32) return ((const float*)data)[at];
    if (dtype == HW_INT8) return ((const int8_t*)data)[at];
    const uint16_t bits = ((const uint16_t*)data)[at];
    return dtype == HW_BFLOAT16 ? of_bfloat(bits) : of_half(bits);
}

INLINE void write_number(int64_t dtype, void* data, int64_t at, float x) {
    if (dtype == HW_FLOAT32) ((float*)data)[at] = x;
    else ((uint16_t*)data)[at] = dtype == HW_BFLOAT16 ? to_bfloat(x) : to_half(x);
}

// W numbers that are next to one another.
template <int DTYPE>
INLINE vf vector_of(const void* data, int64_t at) {
    if constexpr (DTYPE == HW_FLOAT32) return load((const float*)data + at);
#if defined(__AVX512F__)
    const char* from = (const char*)data + (DTYPE == HW_INT8 ? 1 : 2) * at;
    if constexpr (DTYPE == HW_INT8) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
    const __m256i halves = _mm256_loadu_si256((const __m256i*)from);
    return DTYPE == HW_FLOAT16 ? _mm512_cvtph_ps(halves) : (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16);
#elif defined(__AVX2__)
    const char* from = (const char*)data + (DTYPE == HW_INT8 ? 1 : 2) * at;
    if constexpr (DTYPE == HW_INT8) return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
    const __m128i halves = _mm_loadu_si128((const __m128i*)from);
    return DTYPE == HW_FLOAT16 ? _mm256_cvtph_ps(halves) : (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16);
#else
    vf x;
    for (int i = 0; i < W; i++) x[i] = number(DTYPE, data, at + i);
    return x;
#endif
}

// A row of numbers as floats.
template <int DTYPE>
INLINE void floats_of(const void* data, int64_t at, int64_t step, int64_t n, float* to) {
    int64_t i = 0;
    if (step == 1) {
        if (DTYPE == HW_FLOAT32) return (void)std::memcpy(to, (const float*)data + at, 4 * n);
        for (; i + W <= n; i += W) store(to + i, vector_of<DTYPE>(data, at + i));
    }
    for (; i < n; i++) to[i] = number(DTYPE, data, at + i * step);
}

INLINE void floats_of(int64_t dtype, const void* data, int64_t at, int64_t step, int64_t n, float* to) {
    if (dtype == HW_FLOAT32) floats_of<HW_FLOAT32>(data, at, step, n, to);
    else if (dtype == HW_BFLOAT16) floats_of<HW_BFLOAT16>(data, at, step, n, to);
    else if (dtype == HW_INT8) floats_of<HW_INT8>(data, at, step, n, to);
    else floats_of<HW_FLOAT16>(data, at, step, n, to);
}

// Every other block of S lanes of two vectors: the even ones, and the odd ones.
template <int S, int... I>
constexpr auto upper(std::integer_sequence<int, I...>) { return std::integer_sequence<int, (I & S ? I - S + W : I)...>(); }
template <int S, int... I>
constexpr auto lower(std::integer_sequence<int, I...>) { return std::integer_sequence<int, (I & S ? I + W : I + S)...>(); }

// Write W floats as numbers that are next to one another.
INLINE void write_vector(int64_t dtype, void* data, int64_t at, vf x) {
    if (dtype == HW_FLOAT32) return store((float*)data + at, x);
    uint16_t* to = (uint16_t*)data + at;
#if defined(__AVX512F__)
    if (dtype == HW_FLOAT16) return _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph(x, 0));
#elif defined(__F16C__)
    if (dtype == HW_FLOAT16) return _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph(x, 0));
#endif
#if defined(__AVX512BF16__)
    const __m256bh y = _mm512_cvtneps_pbh(x);
    std::memcpy(to, &y, 32);
#else
    if (dtype == HW_BFLOAT16) {
        typedef uint16_t halves __attribute__((vector_size(2 * W)));
        const vu word = (vu)x, rounded = word + 0x7fff + (word >> 16 & 1);
        const halves y = __builtin_convertvector((x == x ? rounded : vu{} + 0x7fc00000) >> 16, halves);
        return (void)std::memcpy(to, &y, sizeof y);
    }
    for (int i = 0; i < W; i++) to[i] = to_half(x[i]);
#endif
}

// Transpose a square of W vectors: at each stage, blocks of S x S off the diagonal change places.
template <int S>
INLINE void exchange(vu* x) {
    for (int i = 0; i < W; i++) {
        if (i & S) continue;
        const vu a = x[i], b = x[i + S];
        x[i] = picked(a, b, upper<S>(Lanes())), x[i + S] = picked(a, b, lower<S>(Lanes()));
    }
}

INLINE void transpose(vu* x) {
    exchange<1>(x), exchange<2>(x);
    if constexpr (W > 4) exchange<4>(x);
    if constexpr (W > 8) exchange<8>(x);
}

// 64 rows of n units, a multiple of W, as [n, 64].
static void transposed_units(const unit* x, int64_t row, int64_t n, unit* to) {
    for (int64_t i = 0; i < 64; i += W)
        for (int64_t d = 0; d < n; d += W) {
            vu square[W];
            for (int64_t j = 0; j < W; j++) std::memcpy(&square[j], (const char*)x + 4 * d + (i + j) * row, 4 * W);
            transpose(square);
            for (int64_t j = 0; j < W; j++) std::memcpy(to + (d + j) * 64 + i, &square[j], 4 * W);
        }
}

// Tables of units. `x` has `rows` rows of n numbers; missing rows up to `all` are 0.
template <class T> struct Packed;

template <> struct Packed<Float32> {
    static int64_t units(int64_t n) { return n; }

    // [rows, n]: the left side of a product.
    static void left(int64_t dtype, const void* x, int64_t row, int64_t column, int64_t rows, int64_t all, int64_t n, unit* to) {
        for (int64_t i = 0; i < rows; i++) floats_of(dtype, x, i * row, column, n, (float*)to + i * n);
        std::memset(to + rows * n, 0, 4 * (all - rows) * n);
    }
    // [n, 64]: the right side, transposed.
    static void transposed(int64_t dtype, const void* x, int64_t row, int64_t column, int64_t rows, int64_t n, unit* to) {
        if (dtype == HW_FLOAT32 && column == 1 && rows == 64 && n % W == 0) return transposed_units((const unit*)x, 4 * row, n, to);
        float* out = (float*)to;
        for (int64_t i = 0; i < rows; i++) {
            if (dtype == HW_FLOAT32) for (int64_t d = 0; d < n; d++) out[d * 64 + i] = ((const float*)x)[i * row + d * column];
            else for (int64_t d = 0; d < n; d++) out[d * 64 + i] = number(dtype, x, i * row + d * column);
        }
        if (rows < 64) for (int64_t d = 0; d < n; d++) std::memset(out + d * 64 + rows, 0, 4 * (64 - rows));
    }
    // [n, 64]: the left side, transposed.
    static void left_transposed(int64_t dtype, const void* x, int64_t row, int64_t column, int64_t rows, int64_t n, unit* to) {
        transposed(dtype, x, row, column, rows, n, to);
    }
    // [64, width]: the right side as it is; columns from n are 0.
    static void right(int64_t dtype, const void* x, int64_t row, int64_t column, int64_t rows, int64_t n, int64_t width, unit* to) {
        for (int64_t i = 0; i < 64; i++) {
            float* out = (float*)to + i * width;
            const int64_t some = i < rows ? n : 0;
            floats_of(dtype, x, i * row, column, some, out);
            std::memset(out + some, 0, 4 * (width - some));
        }
    }
    typedef float Weight;
    INLINE void weights(Weight* p, vf x) { store(p, x); }
    INLINE void weights(Weight* p, vf x, vf y) { store(p, x), store(p + W, y); }
};

#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16)
template <> struct Packed<BFloat16> {
    static int64_t units(int64_t n) { return ((n + 1) / 2 + BFloat16::UNITS - 1) / BFloat16::UNITS * BFloat16::UNITS; }

    INLINE unit pair(const uint16_t* x, int64_t column, int64_t d, int64_t n) {
        return (d < n ? x[d * column] : 0) | (d + 1 < n ? (unit)x[(d + 1) * column] << 16 : 0);
    }
    static void left(int64_t, const void* data, int64_t row, int64_t column, int64_t rows, int64_t all, int64_t n, unit* to) {
        const int64_t u = units(n);
        for (int64_t i = 0; i < rows; i++) {
            const uint16_t* x = (const uint16_t*)data + i * row;
            if (column == 1 && n == 2 * u) std::memcpy(to + i * u, x, 2 * n);
            else for (int64_t d = 0; d < u; d++) to[i * u + d] = pair(x, column, 2 * d, n);
        }
        std::memset(to + rows * u, 0, 4 * (all - rows) * u);
    }
    static void transposed(int64_t, const void* data, int64_t row, int64_t column, int64_t rows, int64_t n, unit* to) {
        const int64_t u = units(n);
        if (column == 1 && rows == 64 && n == 2 * u && u % W == 0) return transposed_units((const unit*)data, 2 * row, u, to);
        for (int64_t i = 0; i < rows; i++) {
            const uint16_t* x = (const uint16_t*)data + i * row;
            if (column == 1 && n == 2 * u) for (int64_t d = 0; d < u; d++) { unit both; std::memcpy(&both, x + 2 * d, 4); to[d * 64 + i] = both; }
            else for (int64_t d = 0; d < u; d++) to[d * 64 + i] = pair(x, column, 2 * d, n);
        }
        if (rows < 64) for (int64_t d = 0; d < u; d++) std::memset(to + d * 64 + rows, 0, 4 * (64 - rows));
    }
    // [n, 32]: the left side, transposed: pairs of rows.
    static void left_transposed(int64_t, const void* data, int64_t row, int64_t column, int64_t rows, int64_t n, unit* to) {
        const uint16_t* x = (const uint16_t*)data;
        for (int64_t j = 0; j < 32; j++)
            for (int64_t d = 0; d < n; d++)
                to[d * 32 + j] = (2 * j < rows ? x[2 * j * row + d * column] : 0) | (2 * j + 1 < rows ? (unit)x[(2 * j + 1) * row + d * column] << 16 : 0);
    }
    // [32, width]: pairs of rows.
    static void right(int64_t, const void* data, int64_t row, int64_t column, int64_t rows, int64_t n, int64_t width, unit* to) {
        for (int64_t i = 0; i < 64; i += 2) {
            const uint16_t* x = (const uint16_t*)data + i * row;
            unit* out = to + i / 2 * width;
            const int64_t some = i < rows ? n : 0;
            if (i + 1 < rows && column == 1) for (int64_t e = 0; e < some; e++) out[e] = x[e] | (unit)x[row + e] << 16;
            else if (i + 1 < rows) for (int64_t e = 0; e < some; e++) out[e] = x[e * column] | (unit)x[row + e * column] << 16;
            else for (int64_t e = 0; e < some; e++) out[e] = x[e * column];
            std::memset(out + some, 0, 4 * (width - some));
        }
    }
    typedef uint16_t Weight;
    INLINE void weights(Weight* p, vf x) {
#if defined(__AVX512BF16__)
        const __m256bh y = _mm512_cvtneps_pbh(x);
        std::memcpy(p, &y, 32);
#else
        const bfloat16x4_t y = vcvt_bf16_f32((float32x4_t)x);
        std::memcpy(p, &y, 8);
#endif
    }
    INLINE void weights(Weight* p, vf x, vf y) {
#if defined(__AVX512BF16__)
        const __m512bh both = _mm512_cvtne2ps_pbh(y, x);
        std::memcpy(p, &both, 64);
#else
        weights(p, x), weights(p + W, y);
#endif
    }
};
#endif

} // namespace ISA
