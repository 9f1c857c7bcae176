// The C interface: checks what it is given, and hands it to the kernels of the instruction set in use.
#include "check_decoder.hpp"
#include "check_encoder.hpp"
#include "pool.hpp"

#include <atomic>
#include <cstring>
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif
#if defined(__linux__)
#include <sys/auxv.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#ifndef INSTRUCTION_SETS // X(portable) X(avx2) ...: the instruction sets that were compiled, from the plainest
#define INSTRUCTION_SETS X(portable)
#endif

#define X(name) namespace name { int64_t strip(), attention_forward(const hw_attention*), attention_backward(const hw_attention*), attention_look(const hw_attention*), linear_forward(const hw_linear*), encoder_forward(const hw_encoder*), decoder_step(const hw_decoder*), dropout_of(const hw_dropout*); }
INSTRUCTION_SETS
#undef X

namespace {

struct Isa {
    const char* name;
    int64_t (*strip)();
    int64_t (*forward)(const hw_attention*);
    int64_t (*backward)(const hw_attention*);
    int64_t (*look)(const hw_attention*);
    int64_t (*linear)(const hw_linear*);
    int64_t (*encoder)(const hw_encoder*);
    int64_t (*decoder)(const hw_decoder*);
    int64_t (*dropout)(const hw_dropout*);
};
#define X(name) {#name, name::strip, name::attention_forward, name::attention_backward, name::attention_look, name::linear_forward, name::encoder_forward, name::decoder_step, name::dropout_of},
const Isa isas[] = {INSTRUCTION_SETS};
#undef X
const int64_t count = sizeof isas / sizeof *isas;

#if defined(__x86_64__)
// A bit of the registers eax or edx that CPUID returns for leaf 7.
bool has(int subleaf, bool edx, int bit) {
    unsigned a, b, c, d;
    return __get_cpuid_count(7, subleaf, &a, &b, &c, &d) && (edx ? d : a) >> bit & 1;
}
#endif

// Linux gives a process the tile registers only if it asks.
bool tiles_allowed() {
#if defined(__x86_64__) && defined(__linux__)
    if (!has(0, true, 22) || !has(0, true, 24) || !has(0, true, 25)) return false; // AMX-BF16, AMX-TILE, AMX-INT8
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
#else
    return false;
#endif
}

#if defined(__aarch64__) && defined(__APPLE__)
bool has(const char* feature) {
    int32_t found = 0;
    size_t size = sizeof found;
    return !sysctlbyname(feature, &found, &size, nullptr, 0) && found;
}
#endif

bool here(const char* name) {
    if (!std::strcmp(name, "portable")) return true;
#if defined(__x86_64__)
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (!std::strcmp(name, "avx2")) return avx2;
    if (!std::strcmp(name, "avxvnni")) return avx2 && has(1, false, 4);
    const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    if (!std::strcmp(name, "avx512")) return wide;
    if (!std::strcmp(name, "avx512vnni")) return wide && __builtin_cpu_supports("avx512vnni");
    const bool half = wide && __builtin_cpu_supports("avx512bf16");
    if (!std::strcmp(name, "avx512bf16")) return half;
    if (!std::strcmp(name, "amx")) return half && tiles_allowed();
#elif defined(__aarch64__)
#if defined(__linux__)
    const bool dot = getauxval(AT_HWCAP) >> 20 & 1, half = dot && getauxval(AT_HWCAP2) >> 14 & 1; // HWCAP_ASIMDDP, HWCAP2_BF16
#elif defined(__APPLE__)
    const bool dot = has("hw.optional.arm.FEAT_DotProd"), half = dot && has("hw.optional.arm.FEAT_BF16");
#else
    const bool dot = false, half = false;
#endif
    if (!std::strcmp(name, "dotprod")) return dot;
    if (!std::strcmp(name, "bf16")) return half;
#endif
    return false;
}

// Intel multiplies bf16 in vectors at half the speed of float32: there bf16 is worth it only with tiles.
bool worth(const char* name) {
#if defined(__x86_64__)
    return std::strcmp(name, "avx512bf16") || __builtin_cpu_is("amd");
#else
    return name != nullptr;
#endif
}

int64_t best() {
#if defined(__x86_64__)
    __builtin_cpu_init();
#endif
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++)
        if (here(isas[i].name) && worth(isas[i].name)) found = i;
    return found;
}

std::atomic<int64_t> used{best()};

struct Range {
    uintptr_t lo, hi;
};

// The bytes of a tensor; an error if they cannot be addressed.
int64_t range_of(const hw_tensor& t, const int64_t* sizes, int64_t bytes, Range& range) {
    if (!t.data) return MISSING;
    if ((uintptr_t)t.data % bytes) return ALIGNMENT;
    int64_t lo = 0, hi = 0;
    for (int i = 0; i < 4; i++) {
        if (sizes[i] > 1 && (t.stride[i] > LARGE || t.stride[i] < -LARGE)) return STRIDES;
        const __int128 far = sizes[i] > 1 ? (__int128)t.stride[i] * (sizes[i] - 1) : 0;
        if (far > LARGE || far < -LARGE) return STRIDES;
        (far < 0 ? lo : hi) += (int64_t)far;
    }
    range = {(uintptr_t)t.data + lo * bytes, (uintptr_t)t.data + (hi + 1) * bytes};
    return FINE;
}

// Check a tensor that is written: no two of its numbers may share a place.
int64_t check_written(const hw_tensor& t, const int64_t* sizes) {
    int64_t order[4] = {0, 1, 2, 3}, past = 1;
    for (int i = 0; i < 4; i++)
        for (int j = i + 1; j < 4; j++)
            if (t.stride[order[j]] < t.stride[order[i]]) {
                const int64_t x = order[i];
                order[i] = order[j], order[j] = x;
            }
    for (int i = 0; i < 4; i++) {
        const int64_t at = order[i];
        if (sizes[at] == 1) continue;
        if (t.stride[at] < past) return OVERLAP;
        past = t.stride[at] * (sizes[at] - 1) + past;
    }
    return FINE;
}

int64_t check_mask(const hw_attention& call) {
    if (call.mask < HW_ALL || call.mask > HW_BLOCKS) return MASK;
    if (call.mask == HW_BAND && (call.low > LARGE || call.low < -LARGE || call.high > LARGE || call.high < -LARGE)) return LIMITS;
    if (call.mask != HW_BLOCKS) return FINE;
    const int64_t tiles = (call.Q + 63) / 64, blocks = (call.K + 63) / 64;
    if (!call.matrix || !call.tiles || call.tile_count < 0 || call.run_count < 0 || call.word_count < 0) return TILES;
    if (!call.runs || (call.word_count && !call.words)) return TILES;
    if (call.tiles[0] < 0 || call.tiles[call.tile_count] > call.run_count) return TILES;
    for (int64_t t = 0; t < call.tile_count; t++) {
        if (call.tiles[t + 1] < call.tiles[t]) return TILES;
        int64_t past = 0;
        for (int64_t i = call.tiles[t]; i < call.tiles[t + 1]; i++) {
            const hw_run& run = call.runs[i];
            const int64_t count = call.runs[i + 1].place - run.place;
            if (run.place < 0 || run.place > LARGE || count < 1 || count > blocks) return TILES;
            if (run.number < past || run.number > blocks - count) return TILES;
            if (run.words < -1 || run.words + 64 > (run.words < 0 ? 63 : call.word_count)) return TILES;
            past = run.number + count;
        }
    }
    for (int64_t b = 0; b < call.B; b++)
        for (int64_t h = 0; h < call.H; h++) {
            const int64_t first = call.matrix[b * call.matrix_stride[0] + h * call.matrix_stride[1]];
            if (first < 0 || first > call.tile_count - tiles) return TILES;
        }
    return FINE;
}

int64_t check_answers(const hw_attention& call) {
    if (!aligned(4, {call.highest, call.log_sum, call.entropy, call.distance, call.received, call.top_weights, call.mean, call.greatest, call.at_offsets, call.at_keys, call.sinks, call.slopes, call.d_slopes, call.d_sinks})) return ALIGNMENT;
    if (!aligned(8, {call.odd, call.needed, call.top_keys, call.offsets, call.keys, call.matrix, call.tiles, call.runs, call.words})) return ALIGNMENT;
    if (call.needed && !(call.share > 0.0 && call.share <= 1.0)) return ANSWERS;
    if (call.top < 0 || call.top > 64 || call.top > call.K) return ANSWERS;
    if (call.top && (!call.top_weights || !call.top_keys)) return MISSING;
    if (call.offset_count < 0 || call.offset_count > LARGE || call.key_count < 0 || call.key_count > call.K) return ANSWERS;
    if ((call.offset_count && (!call.offsets || !call.at_offsets)) || (call.at_keys && call.key_count && !call.keys)) return MISSING;
    for (int64_t i = 0; i < call.offset_count; i++)
        if (call.offsets[i] > LARGE || call.offsets[i] < -LARGE) return ANSWERS;
    const bool pictures = call.mean || call.greatest;
    if (pictures ? call.height < 1 || call.width < 1 || call.height > call.Q || call.width > call.K : call.height || call.width) return ANSWERS;
    return FINE;
}

enum Pass { FORWARD, BACKWARD, LOOK };

int64_t check(const hw_attention* given, Pass pass) {
    if (!given) return MISSING;
    const hw_attention& call = *given;
    if (call.size != sizeof(hw_attention)) return LAYOUT;
    if (call.dtype < HW_FLOAT32 || call.dtype > HW_FLOAT16) return DTYPE;
    const bool backward = pass == BACKWARD, quantized = call.cache_dtype == HW_INT8;
    const int64_t bytes = call.dtype == HW_FLOAT32 ? 4 : 2, of_cache = quantized ? 1 : bytes;
    const int64_t sizes[] = {call.threads, call.B, call.H, call.G, call.Q, call.K, call.D, call.E};
    for (int64_t each : sizes)
        if (each < 1 || each >= INT64_C(1) << 31) return SIZES;
    __int128 most = call.B;
    most *= call.H;
    if (most * call.Q > LARGE || most * call.K > LARGE || call.D > 65536 || call.E > 65536) return SIZES;
    if (call.H % call.G) return HEADS;
    if (quantized ? pass != FORWARD || call.H / call.G * call.Q > 16 : call.cache_dtype != call.dtype) return CACHE;
    if (!quantized && (call.k_scale.data || call.v_scale.data)) return CACHE;
    const int64_t of_q[] = {call.B, call.H, call.Q, call.D}, of_k[] = {call.B, call.G, call.K, call.D}, of_v[] = {call.B, call.G, call.K, call.E};
    const int64_t of_out[] = {call.B, call.H, call.Q, call.E}, of_bias[] = {call.B, call.H, call.Q, call.K}, of_scale[] = {call.B, call.G, call.K, 1};
    struct Tensor {
        const hw_tensor& tensor;
        const int64_t* sizes;
        bool needed, written;
        int64_t bytes;
    };
    const bool values = backward || call.out.data;
    const Tensor tensors[] = {
        {call.q, of_q, true, false, bytes},
        {call.k, of_k, true, false, of_cache},
        {call.v, of_v, values, false, of_cache},
        {call.k_scale, of_scale, quantized, false, 4},
        {call.v_scale, of_scale, quantized && values, false, 4},
        {call.bias, of_bias, false, false, 4},
        {call.d_out, of_out, backward, false, bytes},
        {call.out, of_out, backward, !backward, bytes},
        {call.d_q, of_q, false, backward, bytes},
        {call.d_k, of_k, false, backward, bytes},
        {call.d_v, of_v, false, backward, bytes},
        {call.d_bias, of_bias, false, backward, 4},
    };
    const int many = sizeof tensors / sizeof *tensors;
    Range ranges[many];
    for (int i = 0; i < many; i++) {
        ranges[i] = {0, 0};
        if (!tensors[i].tensor.data && !tensors[i].needed) continue;
        if (const int64_t code = range_of(tensors[i].tensor, tensors[i].sizes, tensors[i].bytes, ranges[i])) return code;
        if (!tensors[i].written) continue;
        if (const int64_t code = check_written(tensors[i].tensor, tensors[i].sizes)) return code;
        for (int j = 0; j < i; j++)
            if (!tensors[j].written && ranges[j].lo < ranges[i].hi && ranges[i].lo < ranges[j].hi) return OVERLAP;
    }
    if (backward && (!call.highest || !call.log_sum)) return MISSING;
    if (!(call.dropout >= 0.0 && call.dropout <= 1.0)) return DROPOUT;
    if (const int64_t code = check_answers(call)) return code;
    if (pass == FORWARD && (call.needed || call.top > 1 || call.offset_count || call.height || (call.received && quantized))) return ANSWERS;
    if (pass == FORWARD && call.received && (!call.highest || !call.log_sum)) return MISSING;
    return check_mask(call);
}

int64_t check(const hw_dropout& call) {
    if (call.size != sizeof call) return LAYOUT;
    if (call.dtype < HW_FLOAT32 || call.dtype > HW_FLOAT16) return DTYPE;
    if (call.N < 0 || call.N > LARGE || call.threads < 1 || call.threads >= INT64_C(1) << 31) return SIZES;
    if (!(call.dropout >= 0.0 && call.dropout <= 1.0)) return DROPOUT;
    if (call.N && (!call.x || !call.y)) return MISSING;
    const int64_t bytes = call.dtype == HW_FLOAT32 ? 4 : 2;
    const uintptr_t x = (uintptr_t)call.x, y = (uintptr_t)call.y;
    if (x % bytes || y % bytes) return ALIGNMENT;
    return x != y && x < y + call.N * bytes && y < x + call.N * bytes ? OVERLAP : FINE;
}

// Waking a thread takes as long as so many multiplications.
const double WORTH_A_THREAD = 1 << 20;

int64_t run(const hw_attention* given, Pass pass, int64_t (*kernel)(const hw_attention*)) {
    const int64_t code = check(given, pass);
    if (code) return code;
    hw_attention call = *given;
    if (call.softcap > 0) call.softcap = call.softcap < 1e-30 ? 1e-30 : call.softcap > 1e30 ? 1e30 : call.softcap; // 1 / softcap is a float
    if ((double)call.B * call.H * call.Q * call.K * (call.D + call.E) < WORTH_A_THREAD) call.threads = 1;
    return kernel(&call);
}

template <class Call>
int64_t run(const Call* call, int64_t (*kernel)(const Call*)) {
    const int64_t code = call ? check(*call) : (int64_t)MISSING;
    return code ? code : kernel(call);
}

} // namespace

int64_t hw_interface() { return INTERFACE; }

const char* hw_isa_name(int64_t which) { return which >= 0 && which < count ? isas[which].name : nullptr; }

int64_t hw_isa_here(int64_t which) { return which >= 0 && which < count && here(isas[which].name); }

int64_t hw_isa_used() { return used; }

int64_t hw_isa_use(int64_t which) {
    if (!hw_isa_here(which)) return -1;
    used = which;
    return 0;
}

int64_t hw_strip() { return isas[used].strip(); }

int64_t hw_attention_forward(const hw_attention* call) { return run(call, FORWARD, isas[used].forward); }

int64_t hw_attention_backward(const hw_attention* call) { return run(call, BACKWARD, isas[used].backward); }

int64_t hw_attention_look(const hw_attention* call) { return run(call, LOOK, isas[used].look); }

int64_t hw_linear_forward(const hw_linear* call) { return run(call, isas[used].linear); }

int64_t hw_encoder_forward(const hw_encoder* call) { return run(call, isas[used].encoder); }

int64_t hw_decoder_step(const hw_decoder* call) { return run(call, isas[used].decoder); }

int64_t hw_dropout_of(const hw_dropout* given) {
    if (const int64_t code = given ? check(*given) : (int64_t)MISSING) return code;
    hw_dropout call = *given;
    if (call.N < 1 << 16) call.threads = 1; // waking another thread takes longer
    return isas[used].dropout(&call);
}

void hw_threads_of(hw::Parallel parallel) { hw::use_threads_of(parallel); }

const char* hw_error(int64_t code) {
    return code >= 0 && code < (int64_t)(sizeof errors / sizeof *errors) ? errors[code] : "an unknown error";
}
