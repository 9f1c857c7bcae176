// The kernels for one instruction set: compiled once for each, with ISA as its name.
#include "backward.hpp"
#include "decode.hpp"
#include "decoder.hpp"
#include "encoder.hpp"
#include "forward.hpp"
#include "look.hpp"
#include "received.hpp"

namespace ISA {

// Whether the log-sum-exps of the forward pass are exact enough for the weights of scores that are computed again.
static bool are_exact(const hw_attention& call) {
    for (int64_t row = 0; row < call.B * call.H * call.Q; row++)
        if (std::fabs(call.highest[row]) > EXACT) return false;
    return !is_few(call); // with few queries, scores are rounded in another order
}

template <class T>
static int64_t forward_and_received(const hw_attention& call) {
    const int64_t code = is_few(call) ? decode(call) : forward<T>(call);
    if (code || !call.received) return code;
    if (are_exact(call)) return received<T>(call);
    hw_attention alone = call;
    alone.out.data = nullptr, alone.top = 0;
    alone.highest = alone.log_sum = alone.entropy = alone.distance = alone.at_keys = nullptr;
    return look<T>(alone);
}

// The kernel for the dtype of a call: of attention, which computes float16 in float32; and of packed weights.
#if defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16)
#define ATTENDS(kernel) (call->dtype == HW_BFLOAT16 ? kernel<BFloat16>(*call) : kernel<Float32>(*call))
#else
#define ATTENDS(kernel) kernel<Float32>(*call)
#endif
#define MAPS(kernel) (call->dtype == HW_FLOAT32 ? kernel<Float32>(*call) : call->dtype == HW_BFLOAT16 ? kernel<Half>(*call) : kernel<Int8>(*call))

int64_t attention_forward(const hw_attention* call) { return ATTENDS(forward_and_received); }
int64_t attention_backward(const hw_attention* call) { return ATTENDS(backward); }
int64_t attention_look(const hw_attention* call) { return ATTENDS(look); }
int64_t linear_forward(const hw_linear* call) { return MAPS(linear); }
int64_t encoder_forward(const hw_encoder* call) { return MAPS(encoder); }
int64_t decoder_step(const hw_decoder* call) { return MAPS(decoder); }

int64_t strip() { return STRIP_WIDTH; }

int64_t dropout_of(const hw_dropout* call) {
    if (call->dtype == HW_FLOAT32) dropout<HW_FLOAT32>(*call);
    else if (call->dtype == HW_BFLOAT16) dropout<HW_BFLOAT16>(*call);
    else dropout<HW_FLOAT16>(*call);
    return 0;
}

} // namespace ISA
