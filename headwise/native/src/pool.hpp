// Threads that sleep until there is work, or the threads of an OpenMP runtime. Each piece of work has a number; which
// thread does it does not change the result.
#pragma once

#include <atomic>
#include <cstdint>

namespace hw {

typedef void (*Piece)(void *work, int64_t piece);

// Call `piece` for 0 to pieces - 1 on at most `threads` threads, including the caller's, and wait for all.
void on_threads(int64_t threads, int64_t pieces, Piece piece, void *work);

// Set the GOMP_parallel of a runtime, whose threads do the work from now on; null for our own threads. (The threads of
// a runtime that is in use wait for their next work without sleeping. Ours would have to share the cores with them.)
typedef void (*Parallel)(void (*)(void *), void *, unsigned threads, unsigned flags);
void use_threads_of(Parallel parallel);

// Memory of this thread, aligned to 64 bytes, kept from call to call: one buffer for each `slot`. Null if there is none.
void *scratch(int slot, int64_t bytes);

} // namespace hw

namespace ISA { // a copy for each instruction set: f is compiled for it

// Call f(0) to f(n - 1), on threads if there are several.
template <class F>
static inline void over(int64_t threads, int64_t n, F f) {
    if (threads == 1) for (int64_t i = 0; i < n; i++) f(i);
    else hw::on_threads(threads, n, [](void* f, int64_t i) { (*(F*)f)(i); }, &f);
}

// The same for an f that returns whether it had the memory that it needs. Returns 0, or the number of an error.
template <class F>
static inline int64_t over_with_memory(int64_t threads, int64_t n, F f) {
    std::atomic<bool> failed{false};
    over(threads, n, [&](int64_t i) {
        if (!f(i)) failed = true;
    });
    return failed ? 1 : 0;
}

} // namespace ISA
