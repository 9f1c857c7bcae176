#include "pool.hpp"

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include <pthread.h>

namespace hw {
namespace {

constexpr int SLOTS = 8;

struct Buffers {
    void *data[SLOTS] = {};
    int64_t bytes[SLOTS] = {};
    ~Buffers() {
        for (void *each : data) std::free(each);
    }
};
thread_local Buffers buffers;

struct Job {
    Piece piece;
    void *work;
    int64_t pieces;
    std::atomic<int64_t> next{0};
    int64_t wanted;      // helpers that may still join
    int64_t running = 0; // helpers at work

    void take() {
        for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) piece(work, i);
    }
};

struct Pool {
    std::mutex mutex;
    std::condition_variable called, done;
    std::vector<Job *> jobs; // with places left for helpers
    int64_t threads = 0;

    void help() {
        std::unique_lock<std::mutex> lock(mutex);
        for (;;) {
            called.wait(lock, [this] { return !jobs.empty(); });
            Job *job = jobs.back();
            if (--job->wanted == 0) jobs.pop_back();
            job->running++;
            lock.unlock();
            job->take();
            lock.lock();
            if (--job->running == 0) done.notify_all();
        }
    }

    void run(Job &job) {
        std::unique_lock<std::mutex> lock(mutex);
        const int64_t helpers = job.wanted;
        for (; threads < helpers; threads++) std::thread([this] { help(); }).detach();
        jobs.push_back(&job);
        lock.unlock();
        for (int64_t i = 0; i < helpers; i++) called.notify_one();
        job.take();
        lock.lock();
        for (auto at = jobs.begin(); at != jobs.end(); ++at)
            if (*at == &job) {
                jobs.erase(at);
                break;
            }
        done.wait(lock, [&job] { return job.running == 0; });
    }
};

// Never destroyed: threads may sleep in it while the process ends. A child of fork has no threads, so it has a new one.
Pool *pool = new Pool;

void forget() { pool = new Pool; }
const int registered = pthread_atfork(nullptr, nullptr, forget);

} // namespace

void on_threads(int64_t threads, int64_t pieces, Piece piece, void *work) {
    Job job;
    job.piece = piece, job.work = work, job.pieces = pieces;
    job.wanted = (threads < pieces ? threads : pieces) - 1;
    if (job.wanted > 0)
        pool->run(job);
    else
        job.take();
}

void *scratch(int slot, int64_t bytes) {
    Buffers &mine = buffers;
    if (mine.bytes[slot] < bytes) {
        std::free(mine.data[slot]);
        const int64_t rounded = (bytes + 4095) / 4096 * 4096;
        mine.data[slot] = std::aligned_alloc(64, rounded);
        mine.bytes[slot] = mine.data[slot] ? rounded : 0;
    }
    return mine.data[slot];
}

} // namespace hw
