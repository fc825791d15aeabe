// Memory aligned for wide vectors.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace burn {

// Owns zeroed memory whose address is a multiple of 64 bytes.
class Aligned {
  public:
    Aligned() = default;
    // bytes: rounded up to a multiple of 64. Throws std::bad_alloc.
    explicit Aligned(size_t bytes) : bytes_((bytes + 63) / 64 * 64) {
        if (bytes_ == 0) return;
        data_ = std::aligned_alloc(64, bytes_);
        if (!data_) throw std::bad_alloc();
        std::memset(data_, 0, bytes_);
    }
    Aligned(Aligned &&other) noexcept
        : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
    Aligned &operator=(Aligned &&other) noexcept {
        std::swap(data_, other.data_);
        std::swap(bytes_, other.bytes_);
        return *this;
    }
    ~Aligned() { std::free(data_); }

    size_t bytes() const { return bytes_; }
    template <class T>
    T *as() const {
        return static_cast<T *>(data_);
    }

  private:
    void *data_ = nullptr;
    size_t bytes_ = 0;
};

}  // namespace burn
