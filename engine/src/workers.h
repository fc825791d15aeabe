// Threads that run one task together and wait for each other.
#pragma once

#include <functional>
#include <memory>

namespace burn {

// The calling thread and size - 1 threads of its own, which sleep between two runs. Where there are
// no threads, as in WebAssembly, the calling one is alone.
class Workers {
  public:
    // Throws std::system_error if the system allows no more threads.
    explicit Workers(int size);
    ~Workers();
    Workers(const Workers &) = delete;
    Workers &operator=(const Workers &) = delete;

    int size() const { return size_; }

    // Calls task(thread) on every thread, 0 being the caller, and returns when all have finished.
    // The task must not throw. Throws Error in a process that was forked after the threads began.
    void run(const std::function<void(int)> &task);

    // Waits, inside a task, until all threads have called this.
    void barrier();

  private:
    struct State;

    const int size_;
    const long process_;
    std::unique_ptr<State> state_;  // null if there is a single thread
};

}  // namespace burn
