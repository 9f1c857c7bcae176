// Vectors of floats, as wide as the instruction set that this file is compiled for, and exp2.
//
// Everything is in the namespace ISA, which the build names after the instruction set: a function compiled for one
// instruction set must never be linked in place of a function compiled for another.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC) && !defined(__ARM_FEATURE_BF16)
#define __ARM_FEATURE_BF16 1 // GCC 12 knows only the longer name
#endif
#endif

#define MEMBER inline __attribute__((always_inline)) // a function of an object
#define INLINE static MEMBER

namespace ISA {

#if defined(__AVX512F__)
constexpr int W = 16;            // floats in a vector
constexpr int REGISTERS = 4;     // vectors side by side in a product of 6 rows
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int REGISTERS = 2;
#elif defined(__aarch64__)
constexpr int W = 4;
constexpr int REGISTERS = 4;
#else
constexpr int W = 4;
constexpr int REGISTERS = 2;
#endif

typedef float vf __attribute__((vector_size(4 * W)));
typedef int32_t vi __attribute__((vector_size(4 * W)));
typedef uint32_t vu __attribute__((vector_size(4 * W)));

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
INLINE int64_t up(int64_t a, int64_t to) { return (a + to - 1) / to * to; }

INLINE vf splat(float x) { return x - vf{}; }
INLINE vi splat(int32_t x) { return x - vi{}; }
INLINE vf load(const float* p) { vf x; std::memcpy(&x, p, sizeof x); return x; }
INLINE void store(float* p, vf x) { std::memcpy(p, &x, sizeof x); }
INLINE vf fma(vf a, vf b, vf c) { return a * b + c; } // contracted: -ffp-contract=fast
// The greater numbers; b if one is NaN.
INLINE vf max(vf a, vf b) {
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#elif defined(__wasm_simd128__)
    return (vf)wasm_f32x4_pmax((v128_t)b, (v128_t)a);
#else
    return a > b ? a : b;
#endif
}
INLINE vi lanes() { vi x; for (int i = 0; i < W; i++) x[i] = i; return x; }

// The lanes FROM of a and, from number W on, of b. GCC before 12 lacks the second name, clang the first.
template <int... FROM, class V>
INLINE V picked(V a, V b, std::integer_sequence<int, FROM...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, FROM...);
#else
    return __builtin_shuffle(a, b, vi{FROM...});
#endif
}

typedef std::make_integer_sequence<int, W> Lanes;
template <int S, int... I>
constexpr auto behind(std::integer_sequence<int, I...>) { return std::integer_sequence<int, (I + S) % W...>(); }

// The lanes that are S further on; the first lanes come after the last.
template <int S>
INLINE vf rotated(vf x) { return picked(x, x, behind<S>(Lanes())); }

template <int S = W / 2>
INLINE float sum(vf x) {
    if constexpr (S == 0) return x[0];
    else return sum<S / 2>(x + rotated<S>(x));
}

// The highest number of x; NaN if one is NaN.
template <int S = W / 2>
INLINE float highest(vf x) {
    if constexpr (S == 0) return x[0];
    else {
        const vf y = rotated<S>(x);
        return highest<S / 2>((x > y) | (x != x) ? x : y);
    }
}

// c[0] f^n + ... + c[n]
template <int N>
INLINE vf polynomial(const float (&c)[N], vf f) {
    vf p = splat(c[0]);
    for (int i = 1; i < N; i++) p = fma(p, f, splat(c[i]));
    return p;
}

// The polynomial for 2^f of the degree DEGREE.
template <int DEGREE, int A, int B, int C>
INLINE vf power(const float (&fine)[A], const float (&coarse)[B], const float (&rough)[C], vf f) {
    return DEGREE >= 6 ? polynomial(fine, f) : DEGREE >= 4 ? polynomial(coarse, f) : polynomial(rough, f);
}

// 2^x; 0 for -inf and far below the smallest float, NaN for NaN. 2^0 is 1 with DEGREE 6, and the relative error of the
// polynomial at most 9e-8; it is 3e-6 with DEGREE 4, and 8e-5 with DEGREE 3, which does for weights rounded to bf16.
template <int DEGREE>
INLINE vf exp2(vf x) {
#if defined(__AVX512F__) // of the fraction from 0 to 1
    constexpr float FINE[] = {2.170225554e-4f, 1.243968787e-3f, 9.678840982e-3f, 5.548334200e-2f, 2.402298363e-1f, 6.931469838e-1f, 1.0f};
    constexpr float COARSE[] = {1.353416800e-2f, 5.201146108e-2f, 2.414427561e-1f, 6.930038348e-1f, 1.000002593e+0f};
    constexpr float ROUGH[] = {7.802458889e-2f, 2.260672251e-1f, 6.958334126e-1f, 9.999252257e-1f};
    const vf f = _mm512_reduce_ps(x, 0x09); // x - floor(x); 0 for -inf
    return _mm512_scalef_ps(power<DEGREE>(FINE, COARSE, ROUGH, f), x);
#else // of the distance to the nearest integer
    constexpr float FINE[] = {1.326472604e-3f, 9.671512722e-3f, 5.550733747e-2f, 2.402224208e-1f, 6.931469776e-1f, 1.0f};
    constexpr float COARSE[] = {9.570101968e-3f, 5.591786076e-2f, 2.402474483e-1f, 6.931218147e-1f, 9.999992614e-1f};
    constexpr float ROUGH[] = {5.517132307e-2f, 2.426113306e-1f, 6.932610891e-1f, 9.999280471e-1f};
    const vf magic = splat(12582912.0f); // 1.5 * 2^23: adding it rounds to the nearest integer
    const vf clamped = x < -126.0f ? splat(-126.0f) : x;
    const vf shifted = clamped + magic;
    const vf f = clamped - (shifted - magic);
    const vf p = power<DEGREE>(FINE, COARSE, ROUGH, f);
    const vu bits = (vu)p + ((vu)shifted << 23); // (from 2^128 on any number: such pairs are hidden, or computed again)
    return x < -126.0f ? vf{} : (vf)bits;
#endif
}

// A comparison as bits, one per lane.
INLINE uint32_t bits_of(vi x) {
#if defined(__AVX512F__)
    return _mm512_movepi32_mask((__m512i)x);
#elif defined(__AVX2__)
    return (uint32_t)_mm256_movemask_ps((vf)x);
#elif defined(__aarch64__)
    return vaddvq_u32((uint32x4_t)((vu)x & vu{1, 2, 4, 8}));
#elif defined(__wasm_simd128__)
    return wasm_i32x4_bitmask((v128_t)x);
#else
    uint32_t bits = 0;
    for (int i = 0; i < W; i++) bits |= (uint32_t)(x[i] != 0) << i;
    return bits;
#endif
}

INLINE bool any(vi comparison) { return bits_of(comparison); }

INLINE bool any_above(vf a, vf b) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
#else
    return any(a > b);
#endif
}

} // namespace ISA
