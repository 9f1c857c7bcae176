// The C interface: checks what it is given, and hands it to the kernels of the instruction set in use.
#include "../headwise.h"

#include <cpuid.h>
#include <cstdint>
#include <sys/syscall.h>
#include <unistd.h>

#define EVERY(X) X(portable) X(avx2) X(avx512) X(avx512bf16) X(amx)

#define DECLARE(name) namespace name { int64_t attention_forward(const hw_attention *); int64_t attention_backward(const hw_attention *); }
EVERY(DECLARE)

namespace {
struct Isa {
    const char *name;
    int64_t (*forward)(const hw_attention *), (*backward)(const hw_attention *);
};
#define ENTRY(name) {#name, name::attention_forward, name::attention_backward},
const Isa isas[] = {EVERY(ENTRY)};
const int64_t count = sizeof isas / sizeof *isas;

// Linux gives a process the tile registers only if it asks.
bool tiles_allowed() {
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d >> 22 & 1) || !(d >> 24 & 1)) return false;
    return syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XFEATURE_XTILEDATA */) == 0;
}

bool here(int64_t which) {
    switch (which) {
    case 0: return true;
    case 1: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case 2: return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    case 3: return here(2) && __builtin_cpu_supports("avx512bf16");
    case 4: return here(3) && tiles_allowed();
    }
    return false;
}
int64_t best() {
    int64_t found = 0;
    for (int64_t i = 0; i < count; i++)
        if (here(i)) found = i;
    return found;
}
int64_t used = best();
} // namespace

#define API extern "C" __attribute__((visibility("default")))
API const char *hw_isa_name(int64_t which) { return which >= 0 && which < count ? isas[which].name : nullptr; }
API int64_t hw_isa_here(int64_t which) { return which >= 0 && which < count && here(which); }
API int64_t hw_isa_use(int64_t which) { return hw_isa_here(which) ? (used = which, 0) : -1; }
API int64_t hw_attention_forward(const hw_attention *call) { return isas[used].forward(call); }
API int64_t hw_attention_backward(const hw_attention *call) { return isas[used].backward(call); }
