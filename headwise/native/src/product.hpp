// The matrix product that all kernels use: C [rows, columns] = A B, or += A B, in registers.
//
// A unit is 4 bytes: a float, or a pair of bf16 or four int8 that are next to one another in the dimension that is
// summed over. A (row, i) may be a unit anywhere in memory; B is a table of units [i, columns], whose rows are read in
// vectors. T::LEFT_UNITS units of A are multiplied by one of B.
#pragma once

#include "vec.hpp"

namespace ISA {

typedef uint32_t unit;

// R rows and C vectors of the result. `rs`, `is`: steps of A in units.
template <class T, int R, int C>
INLINE void in_registers(const unit* a, long rs, long is, const float* b, long bs, long n, float* c, long cs, bool add) {
    typedef typename T::Sum Sum;
    Sum acc[R][C];
    for (int r = 0; r < R; r++)
        for (int j = 0; j < C; j++) acc[r][j] = add ? (Sum)load(c + r * cs + j * W) : Sum{};
    for (long i = 0; i < n; i++) {
        Sum row[C];
        for (int j = 0; j < C; j++) row[j] = (Sum)load(b + i * bs + j * W);
        for (int r = 0; r < R; r++)
            for (int j = 0; j < C; j++) acc[r][j] = T::mac(acc[r][j], a + r * rs + i * is, row[j]);
    }
    for (int r = 0; r < R; r++)
        for (int j = 0; j < C; j++) store(c + r * cs + j * W, (vf)acc[r][j]);
}

template <class T, int R>
static void rows_of(const unit* a, long rs, long is, const float* b, long bs, long n, float* c, long cs, long columns, bool add) {
    long j = 0;
    for (; j + REGISTERS * W <= columns; j += REGISTERS * W) in_registers<T, R, REGISTERS>(a, rs, is, b + j, bs, n, c + j, cs, add);
    if constexpr (REGISTERS > 2)
        for (; j + 2 * W <= columns; j += 2 * W) in_registers<T, R, 2>(a, rs, is, b + j, bs, n, c + j, cs, add);
    for (; j < columns; j += W) in_registers<T, R, 1>(a, rs, is, b + j, bs, n, c + j, cs, add);
}

// Products by T::mac, for at most ROWS rows and a multiple of COLUMNS columns. With 4 rows or fewer it reads and writes 4,
// with more 6: a tile of 64 rows is ten times 6 and once 4.
template <class T, int MOST = 6>
struct Registers {
    typedef vf Sum;
    static constexpr int UNITS = 1, ROWS = MOST, COLUMNS = W, BLOCKS = 1, LEFT_UNITS = 1;
    static void product(long rows, const unit* a, long rs, long is, const float* b, long bs, long n, float* c, long cs, long columns, bool add) {
        if (rows > 4) rows_of<T, MOST>(a, rs, is, b, bs, n, c, cs, columns, add);
        else rows_of<T, 4>(a, rs, is, b, bs, n, c, cs, columns, add);
    }
};

struct Float32 : Registers<Float32> {
    static constexpr int PAIR = 1, DEGREE = 6, ROUGH = 6;
    INLINE vf mac(vf c, const unit* a, vf b) {
        float x;
        std::memcpy(&x, a, 4);
        return fma(splat(x), b, c);
    }
};

#if defined(__AMX_BF16__)
// Products in tiles of 16 x 16 sums. They read 32 rows of A, and units up to the next multiple of 16.
template <class T>
struct Tiles {
    static constexpr int UNITS = 16, ROWS = 32, COLUMNS = 32, BLOCKS = 4, LEFT_UNITS = 1;
    static void product(long rows, const unit* a, long rs, long, const float* b, long bs, long n, float* c, long cs, long columns, bool add) {
        __asm__ volatile("" ::: "memory"); // GCC does not know that tiles are loaded from memory
        const bool both = rows > 16;
        for (long j = 0; j < columns; j += 32) {
            float *upper = c + j, *lower = upper + 16 * cs;
            if (add) {
                _tile_loadd(0, upper, 4 * cs);
                _tile_loadd(1, upper + 16, 4 * cs);
                if (both) {
                    _tile_loadd(2, lower, 4 * cs);
                    _tile_loadd(3, lower + 16, 4 * cs);
                }
            } else {
                _tile_zero(0);
                _tile_zero(1);
                _tile_zero(2);
                _tile_zero(3);
            }
            for (long i = 0; i < n; i += 16) {
                _tile_loadd(6, b + i * bs + j, 4 * bs);
                _tile_loadd(7, b + i * bs + j + 16, 4 * bs);
                _tile_loadd(4, a + i, 4 * rs);
                T::upper_rows();
                if (both) {
                    _tile_loadd(5, a + 16 * rs + i, 4 * rs);
                    T::lower_rows();
                }
            }
            _tile_stored(0, upper, 4 * cs);
            _tile_stored(1, upper + 16, 4 * cs);
            if (both) {
                _tile_stored(2, lower, 4 * cs);
                _tile_stored(3, lower + 16, 4 * cs);
            }
        }
        __asm__ volatile("" ::: "memory");
    }
};

struct BFloat16 : Tiles<BFloat16> {
    static constexpr int PAIR = 2, DEGREE = 4, ROUGH = 3;
    INLINE void upper_rows() { _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); }
    INLINE void lower_rows() { _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7); }
};
#elif defined(__AVX512BF16__)
struct BFloat16 : Registers<BFloat16> {
    static constexpr int PAIR = 2, DEGREE = 4, ROUGH = 3;
    INLINE vf mac(vf c, const unit* a, vf b) { return _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_epi32((int)*a), (__m512bh)b); }
};
#elif defined(__ARM_FEATURE_BF16)
struct BFloat16 : Registers<BFloat16> {
    static constexpr int PAIR = 2, DEGREE = 4, ROUGH = 3;
    INLINE vf mac(vf c, const unit* a, vf b) {
        return (vf)vbfdotq_f32((float32x4_t)c, vreinterpretq_bf16_u32(vdupq_n_u32(*a)), vreinterpretq_bf16_f32((float32x4_t)b));
    }
};
#endif

// A has numbers from 0 to 255, B from -128 to 127, four in a unit; the sums are int32. ARM multiplies signed bytes: there A
// is 128 less.
#if defined(__ARM_FEATURE_DOTPROD)
constexpr int ZERO_OF_A = 0, ROWS_OF_BYTES = 4; // (with 6 rows, registers do not suffice)
#else
constexpr int ZERO_OF_A = 128, ROWS_OF_BYTES = 6;
#endif
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__ARM_FEATURE_DOTPROD)
#define HAS_BYTES 1 // products of bytes
#endif
#if defined(__AMX_INT8__)
struct Int8 : Tiles<Int8> {
    static constexpr int PAIR = 4;
    INLINE void upper_rows() { _tile_dpbusd(0, 4, 6); _tile_dpbusd(1, 4, 7); }
    INLINE void lower_rows() { _tile_dpbusd(2, 5, 6); _tile_dpbusd(3, 5, 7); }
};
#elif defined(HAS_BYTES)
struct Int8 : Registers<Int8, ROWS_OF_BYTES> {
    typedef vi Sum; // (GCC keeps sums in registers only if they have the type in which they are added)
    static constexpr int PAIR = 4;
    INLINE vi mac(vi c, const unit* a, vi b) {
#if defined(__AVX512VNNI__)
        return (vi)_mm512_dpbusd_epi32((__m512i)c, _mm512_set1_epi32((int)*a), (__m512i)b);
#elif defined(__ARM_FEATURE_DOTPROD)
        return (vi)vdotq_s32((int32x4_t)c, (int8x16_t)b, (int8x16_t)splat((int32_t)*a));
#else
        return (vi)_mm256_dpbusd_avx_epi32((__m256i)c, _mm256_set1_epi32((int)*a), (__m256i)b);
#endif
    }
};
#else
// A is stored as pairs of 16 bits, (0, 2) and (1, 3) of four numbers, and is multiplied by the even and the odd bytes of B.
struct Int8 : Registers<Int8, 4> { // (with 6 rows, registers do not suffice)
    typedef vi Sum;
    static constexpr int PAIR = 4, LEFT_UNITS = 2;
    typedef int16_t pairs __attribute__((vector_size(4 * W)));
    INLINE vi mac(vi c, const unit* a, vi b) {
        const pairs bytes = (pairs)b;
        return c + (dot(splat((int32_t)a[0]), bytes << 8 >> 8) + dot(splat((int32_t)a[1]), bytes >> 8));
    }
    // The sums of two products of 16 bits.
    INLINE vi dot(vi a, pairs b) {
#if defined(__AVX512BW__)
        return (vi)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#elif defined(__AVX2__)
        return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__)
        return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__wasm_simd128__)
        return (vi)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b);
#else
        return (a & 0xffff) * ((vi)b << 16 >> 16) + (a >> 16) * ((vi)b >> 16);
#endif
    }
};
#endif

// While an object lives, results so small that they are denormal become 0 (products with them are many times slower),
// and all tiles have 16 rows of 64 bytes.
struct Products {
#if defined(__x86_64__)
    const unsigned control = _mm_getcsr();
#endif
    Products() {
#if defined(__x86_64__)
        _mm_setcsr(control | 0x8000);
#endif
#if defined(__AMX_BF16__)
        struct { uint8_t palette, row, reserved[14]; uint16_t bytes[16]; uint8_t rows[16]; } shape = {};
        shape.palette = 1;
        for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = 16;
        __asm__ volatile("" ::"r"(&shape) : "memory"); // GCC does not know that all of it is read
        _tile_loadconfig(&shape);
#endif
    }
    ~Products() {
#if defined(__AMX_BF16__)
        _tile_release();
#endif
#if defined(__x86_64__)
        _mm_setcsr(control);
#endif
    }
    Products(const Products&) = delete;
};

} // namespace ISA
