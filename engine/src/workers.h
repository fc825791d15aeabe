// Threads that do one thing together and wait for each other.
#pragma once

#include <functional>
#include <memory>

namespace burn {

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
    void barrier();

  private:
    struct State;

    const int size_;
    const long process_;
    std::unique_ptr<State> state_;  // null for a single thread
};

}  // namespace burn
