#include "workers.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "format.h"

namespace burn {

namespace {

#if defined(__EMSCRIPTEN__) && !defined(__EMSCRIPTEN_PTHREADS__)
constexpr bool kThreads = false;
#else
constexpr bool kThreads = true;
#endif
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// A barrier for a fixed number of threads. They spin for kSpin and then sleep: with spinning alone
// they wait for milliseconds when the system takes a processor away from one of them.
class Barrier {
  public:
    explicit Barrier(int threads) : threads_(threads) {}

    void wait() {
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

  private:
    const int threads_;
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> round_{0};
    std::mutex mutex_;
    std::condition_variable moved_;
};

}  // namespace

struct Workers::State {
    explicit State(int size) : barrier(size) {}

    void work(int thread) {
        unsigned seen = 0;
        while (true) {
            {
                std::unique_lock<std::mutex> lock(mutex);
                begun.wait(lock, [&] { return ending || generation != seen; });
                if (ending) return;
                seen = generation;
            }
            (*task)(thread);
            barrier.wait();
        }
    }

    void end() {
        {
            std::lock_guard<std::mutex> lock(mutex);
            ending = true;
        }
        begun.notify_all();
        for (auto &thread : threads) thread.join();
    }

    Barrier barrier;
    std::mutex mutex;
    std::condition_variable begun;
    unsigned generation = 0;
    bool ending = false;
    const std::function<void(int)> *task = nullptr;
    std::vector<std::thread> threads;
};

Workers::Workers(int size) : size_(kThreads ? size : 1), process_(getpid()) {
    if (size_ == 1) return;
    state_ = std::make_unique<State>(size);
    State *state = state_.get();
    state->threads.reserve(static_cast<size_t>(size - 1));
    try {
        for (int thread = 1; thread < size; ++thread) {
            state->threads.emplace_back([state, thread] { state->work(thread); });
        }
    } catch (...) {  // the system allows no more threads: end those that have begun
        state->end();
        throw;
    }
}

Workers::~Workers() {
    if (!state_) return;
    if (getpid() == process_) {
        state_->end();
    } else {
        // Only the parent process has the threads. They cannot be joined, and the destructors of
        // what they wait on might wait for them, so the state is leaked.
        static_cast<void>(state_.release());
    }
}

void Workers::run(const std::function<void(int)> &task) {
    if (state_) {
        if (getpid() != process_) {
            throw Error("this process was forked and has none of the model's threads: load the "
                        "model again");
        }
        {
            std::lock_guard<std::mutex> lock(state_->mutex);
            state_->task = &task;
            ++state_->generation;
        }
        state_->begun.notify_all();
    }
    task(0);
    barrier();
}

void Workers::barrier() {
    if (state_) state_->barrier.wait();
}

}  // namespace burn
