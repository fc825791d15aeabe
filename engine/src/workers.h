// Threads that do one thing together and wait for each other.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace burn {

// Where a number of threads meet. They spin for some microseconds and then sleep: pure spinning
// starves itself for milliseconds where a processor is taken away.
class Barrier {
  public:
    explicit Barrier(int threads) : threads_(threads) {}
    void wait();

  private:
    const int threads_;
    std::atomic<int> arrived_{0};
    std::atomic<unsigned> round_{0};
    std::mutex mutex_;
    std::condition_variable moved_;
};

// A caller and size - 1 threads of its own, asleep between two runs.
class Workers {
  public:
    explicit Workers(int size);
    ~Workers();
    Workers(const Workers &) = delete;
    Workers &operator=(const Workers &) = delete;

    int size() const { return size_; }

    // task(thread) on every thread, 0 being the caller's; returns when all have done. The task
    // does not throw. Throws Error in a process forked after the threads were made.
    void run(const std::function<void(int)> &task);

    // Inside a task: wait for the others.
    void meet() { if (size_ > 1) barrier_.wait(); }

  private:
    void work(int thread);

    const int size_;
    const long process_;
    Barrier barrier_;
    std::mutex mutex_;
    std::condition_variable begun_;
    unsigned generation_ = 0;
    bool ending_ = false;
    const std::function<void(int)> *task_ = nullptr;
    std::vector<std::thread> threads_;
};

}  // namespace burn
