// The activations between linear layers.
#pragma once

#include "vec.hpp"

namespace ISA {

// x Phi(x). erf(x / sqrt 2) is x p(x^2) / q(x^2), by a fit up to 5.3, where it is 1 as a float; the error is that of rounding.
INLINE vf gelu(vf x) {
    constexpr float P[] = {4.677667130e-08f, 1.293583952e-05f, 3.406903883e-04f, 9.375188821e-03f, 6.778944265e-02f, 7.978842213e-01f};
    constexpr float Q[] = {1.224656082e-06f, 7.469179161e-05f, 1.892365787e-03f, 2.869039972e-02f, 2.516263234e-01f, 1.000000000e+00f};
    constexpr float END = 5.3f;
    const vf bounded = x > END ? splat(END) : x < -END ? splat(-END) : x, square = bounded * bounded, half = 0.5f * x;
    return fma(half, bounded * polynomial(P, square) / polynomial(Q, square), half);
}

// x / (1 + exp(-y))
INLINE vf times_sigmoid(vf x, vf y) {
    const vf power = -1.44269504088896341f * y;
    return x / (1.0f + exp2<6>(power > 126.0f ? splat(126.0f) : power));
}

template <int ACTIVATION>
INLINE vf activated(vf x) {
    if constexpr (ACTIVATION == HW_RELU) return x < 0.0f ? vf{} : x; // NaN stays
    else if constexpr (ACTIVATION == HW_GELU) return gelu(x);
    else if constexpr (ACTIVATION == HW_GELU_TANH) return times_sigmoid(x, 1.5957691216057308f * fma(0.044715f * x * x, x, x));
    else if constexpr (ACTIVATION == HW_SILU) return times_sigmoid(x, x);
    else return x;
}

} // namespace ISA
