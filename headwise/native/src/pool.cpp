// Threads by POSIX functions only: whatever C++ library the compiler has, the kernels need none when they run.
#include "pool.hpp"

#include <atomic>
#include <cstdlib>
#include <new>

#include <pthread.h>

namespace hw {
namespace {

constexpr int SLOTS = 8;

struct Buffers {
    void *data[SLOTS];
    int64_t bytes[SLOTS];
};

void release(void *of_thread) {
    for (void *each : ((Buffers *)of_thread)->data) std::free(each);
    std::free(of_thread);
}
pthread_key_t buffers;
const int made = pthread_key_create(&buffers, release);

struct Job {
    Piece piece;
    void *work;
    int64_t pieces;
    std::atomic<int64_t> next{0};
    int64_t wanted;      // helpers that may still join
    int64_t running = 0; // helpers at work
    Job *older = nullptr;

    void take() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) piece(work, i);
    }
};

struct Pool {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_cond_t called = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
    Job *newest = nullptr; // newest of the jobs with places left for helpers
    int64_t threads = 0;

    void help() {
        pthread_mutex_lock(&mutex);
        for (;;) {
            while (!newest) pthread_cond_wait(&called, &mutex);
            Job *job = newest;
            if (--job->wanted == 0) newest = job->older;
            job->running++;
            pthread_mutex_unlock(&mutex);
            job->take();
            pthread_mutex_lock(&mutex);
            if (--job->running == 0) pthread_cond_broadcast(&done);
        }
    }

    // Start another thread; false if the system refuses: then the existing threads do the work.
    bool grow() {
        pthread_t thread;
        const auto begin = [](void *pool) -> void * { return ((Pool *)pool)->help(), nullptr; };
        if (pthread_create(&thread, nullptr, begin, this)) return false;
        threads++;
        return pthread_detach(thread) == 0;
    }

    void run(Job &job) {
        pthread_mutex_lock(&mutex);
        const int64_t helpers = job.wanted;
        while (threads < helpers && grow()) {}
        job.older = newest, newest = &job;
        pthread_mutex_unlock(&mutex);
        for (int64_t i = 0; i < helpers; i++) pthread_cond_signal(&called);
        job.take();
        pthread_mutex_lock(&mutex);
        Job **at = &newest;
        while (*at && *at != &job) at = &(*at)->older;
        if (*at) *at = job.older;
        while (job.running) pthread_cond_wait(&done, &mutex);
        pthread_mutex_unlock(&mutex);
    }
};

// Never destroyed: threads may sleep in it while the process ends. A child of fork has no threads, so it makes a new
// pool with threads of its own: the threads of an OpenMP runtime do not survive a fork either.
Pool pool;
std::atomic<Parallel> parallel{nullptr};

void forget() { new (&pool) Pool, parallel = nullptr; }
const int registered = pthread_atfork(nullptr, nullptr, forget);

} // namespace

void on_threads(int64_t threads, int64_t pieces, Piece piece, void *work) {
    Job job;
    job.piece = piece, job.work = work, job.pieces = pieces;
    job.wanted = (threads < pieces ? threads : pieces) - 1;
    if (job.wanted <= 0)
        job.take();
    else if (const Parallel theirs = parallel) // (with all threads: else the runtime would end some and begin others)
        theirs([](void *given) { ((Job *)given)->take(); }, &job, (unsigned)threads, 0);
    else
        pool.run(job);
}

void use_threads_of(Parallel given) { parallel = given; }

void *scratch(int slot, int64_t bytes) {
    Buffers *mine = (Buffers *)pthread_getspecific(buffers);
    if (!mine) {
        mine = (Buffers *)std::calloc(1, sizeof(Buffers));
        if (!mine || pthread_setspecific(buffers, mine)) return std::free(mine), nullptr;
    }
    if (mine->bytes[slot] < bytes) {
        std::free(mine->data[slot]);
        const int64_t rounded = (bytes + 4095) / 4096 * 4096;
        mine->data[slot] = std::aligned_alloc(64, rounded);
        mine->bytes[slot] = mine->data[slot] ? rounded : 0;
    }
    return mine->data[slot];
}

} // namespace hw
