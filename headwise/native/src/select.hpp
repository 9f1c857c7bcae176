// The largest numbers of a row, and how many of them hold a share of its sum. The numbers are at least 0.
#pragma once

#include "vec.hpp"

namespace ISA {

constexpr int64_t CHUNK = 64;      // numbers whose largest is kept
constexpr int64_t CANDIDATES = 24; // up to so many numbers are sorted
constexpr double ROUND_OFF = 1e-6; // a sum that is short by at most this counts as the share

INLINE float from_bits(uint32_t bits) { float x; std::memcpy(&x, &bits, 4); return x; }
INLINE uint32_t to_bits(float x) { uint32_t bits; std::memcpy(&bits, &x, 4); return bits; }

// Copy the numbers from `lo` on and below `hi`, of n numbers, a multiple of W; returns how many there are. W more
// numbers may be written.
static int64_t between(const float* x, int64_t n, uint32_t lo, uint32_t hi, float* to) {
    const vf least = splat(from_bits(lo)), past = splat(from_bits(hi));
    int64_t count = 0;
    for (int64_t i = 0; i < n; i += W) {
        const vf y = load(x + i);
        uint32_t in = bits_of((y >= least) & (y < past));
#if defined(__AVX512F__)
        store(to + count, _mm512_maskz_compress_ps((__mmask16)in, y));
        count += __builtin_popcount(in);
#else
        for (; in; in &= in - 1) to[count++] = x[i + __builtin_ctz(in)];
#endif
    }
    return count;
}

// The smallest count of numbers that hold this share of the sum `total` of n numbers, a multiple of 4 W and each at
// most 1. Returns 0 where that sum is 0 or NaN. `memory`: for n + 4 W numbers.
static int64_t fewest(const float* x, int64_t n, float total, double share, float* memory) {
    if (!(total > 0.0f) || total == INFINITY) return 0;
    const double target = (double)total * (share - ROUND_OFF);
    // The bits of positive floats are in the order of the floats. The numbers from `lo` on hold the target, and the
    // numbers from `hi` on do not: there are `above` of these, with the sum `sum_above`. The smallest numbers, which
    // together hold less than the part of the sum that may be left out, are not needed.
    uint32_t lo = to_bits((float)(total * (1.0 - share) * 0.5 / (double)n)), hi = to_bits(2.0f);
    int64_t above = 0, from_lo = n, left_out = 0;
    double sum_above = 0.0, sum_from_lo = total, sum_left_out = 0.0;
    int side = 0; // which limit moved last, and how often in succession
    while (hi - lo > 1 && from_lo - above > CANDIDATES) {
        if (x != memory && from_lo - above <= n / 8) { // look only at these from now on
            n = between(x, n, lo, hi, memory);
            while (n % (4 * W)) memory[n++] = -1.0f;
            x = memory, left_out = above, sum_left_out = sum_above;
        }
        // The place where a straight line between the two sums meets the target; the middle if one limit does not move.
        double part = side > 1 || side < -1 ? 0.5 : (sum_from_lo - target) / (sum_from_lo - sum_above);
        part = part > 0.05 ? part < 0.95 ? part : 0.95 : 0.05;
        uint32_t middle = lo + (uint32_t)((double)(hi - lo) * part);
        middle = middle <= lo ? lo + 1 : middle >= hi ? hi - 1 : middle;
        const vf least = splat(from_bits(middle));
        vf sums[4] = {}; // several, because an addition waits for the one before it
        vi counts[4] = {};
        for (int64_t i = 0; i < n; i += 4 * W)
            for (int j = 0; j < 4; j++) {
                const vf y = load(x + i + j * W);
                const vi in = y >= least;
                sums[j] += in ? y : vf{};
                counts[j] -= in;
            }
        const double found = sum_left_out + sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
        const int64_t count = left_out + (int64_t)sum(__builtin_convertvector((counts[0] + counts[1]) + (counts[2] + counts[3]), vf));
        if (found >= target) lo = middle, from_lo = count, sum_from_lo = found, side = side > 0 ? side + 1 : 1;
        else hi = middle, above = count, sum_above = found, side = side < 0 ? side - 1 : -1;
    }
    if (hi - lo == 1) { // all remaining numbers are equal
        const int64_t more = (int64_t)std::ceil((target - sum_above) / (double)from_bits(lo));
        return above + (more < 1 ? 1 : more > from_lo - above ? from_lo - above : more);
    }
    float left[CANDIDATES + W];
    const int64_t count = between(x, n, lo, hi, left);
    for (int64_t i = 1; i < count; i++) { // descending
        const float y = left[i];
        int64_t at = i;
        for (; at > 0 && left[at - 1] < y; at--) left[at] = left[at - 1];
        left[at] = y;
    }
    for (int64_t i = 0; i < count && sum_above < target; i++) sum_above += left[i], above++;
    return above;
}

// The largest number of each lane of a chunk.
INLINE vf largest_of_lanes(const float* chunk) {
    vf top = splat(-1.0f);
    for (int64_t j = 0; j < CHUNK; j += W) top = max(load(chunk + j), top);
    return top;
}

// The largest of n numbers, a multiple of CHUNK, in descending order, and their places; returns how many: `want`, or
// all numbers that are not negative. In x they become -1. NaN is never among them. `most`: memory for n numbers.
static int64_t take_largest(float* x, int64_t n, int64_t want, float* values, int64_t* places, float* most) {
    const int64_t chunks = n / CHUNK;
    for (int64_t i = 0; i < chunks; i++) store(most + i * W, largest_of_lanes(x + i * CHUNK));
    for (int64_t found = 0; found < want; found++) {
        vf top = splat(-1.0f);
        for (int64_t i = 0; i < chunks; i++) top = max(load(most + i * W), top);
        const float value = highest(top);
        if (value < 0.0f) return found;
        int64_t chunk = 0;
        while (!any(load(most + chunk * W) == value)) chunk++;
        int64_t at = chunk * CHUNK;
        while (x[at] != value) at++;
        values[found] = value, places[found] = at;
        x[at] = -1.0f;
        store(most + chunk * W, largest_of_lanes(x + chunk * CHUNK));
    }
    return want;
}

} // namespace ISA
