// The kernels for one instruction set: compiled once for each, with ISA as its name.
#include "backward.hpp"
#include "decode.hpp"
#include "forward.hpp"
#include "look.hpp"

namespace ISA {

int64_t attention_forward(const hw_attention* call) {
    if (is_few(*call)) return decode(call);
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16)
    if (call->dtype == HW_BFLOAT16) return forward<BFloat16>(call);
#endif
    return forward<Float32>(call);
}

int64_t attention_backward(const hw_attention* call) {
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16)
    if (call->dtype == HW_BFLOAT16) return backward<BFloat16>(call);
#endif
    return backward<Float32>(call);
}

int64_t attention_look(const hw_attention* call) {
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16)
    if (call->dtype == HW_BFLOAT16) return look<BFloat16>(call);
#endif
    return look<Float32>(call);
}

} // namespace ISA
