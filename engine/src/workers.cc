#include "workers.h"

#include <unistd.h>

#include <chrono>

#include "format.h"

namespace burn {

namespace {

constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

void Barrier::wait() {
    const unsigned round = round_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
        arrived_.store(0, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            round_.store(round + 1, std::memory_order_release);
        }
        moved_.notify_all();
        return;
    }
    const auto until = std::chrono::steady_clock::now() + kSpin;
    do {
        for (int i = 0; i < 32; ++i) {
            if (round_.load(std::memory_order_acquire) != round) return;
            pause();
        }
    } while (std::chrono::steady_clock::now() < until);
    std::unique_lock<std::mutex> lock(mutex_);
    moved_.wait(lock, [&] { return round_.load(std::memory_order_acquire) != round; });
}

Workers::Workers(int size) : size_(size), process_(getpid()), barrier_(size) {
    threads_.reserve(static_cast<size_t>(size - 1));
    try {
        for (int thread = 1; thread < size; ++thread) {
            threads_.emplace_back([this, thread] { work(thread); });
        }
    } catch (...) {  // the system has no more threads: end those there are
        {
            std::lock_guard<std::mutex> lock(mutex_);
            ending_ = true;
        }
        begun_.notify_all();
        for (auto &thread : threads_) thread.join();
        throw;
    }
}

Workers::~Workers() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        ending_ = true;
    }
    begun_.notify_all();
    for (auto &thread : threads_) thread.join();
}

void Workers::run(const std::function<void(int)> &task) {
    if (size_ > 1) {
        if (getpid() != process_) {
            throw Error("the process was forked and left the threads behind: load the model anew");
        }
        {
            std::lock_guard<std::mutex> lock(mutex_);
            task_ = &task;
            ++generation_;
        }
        begun_.notify_all();
    }
    task(0);
    meet();
}

void Workers::work(int thread) {
    unsigned seen = 0;
    while (true) {
        {
            std::unique_lock<std::mutex> lock(mutex_);
            begun_.wait(lock, [&] { return ending_ || generation_ != seen; });
            if (ending_) return;
            seen = generation_;
        }
        (*task_)(thread);
        meet();
    }
}

}  // namespace burn
