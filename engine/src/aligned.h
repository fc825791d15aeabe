// Memory aligned for wide vectors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace burn {

// Owns zeroed memory whose address is a multiple of 64 bytes.
class Aligned {
  public:
    Aligned() = default;
    // bytes: rounded up to a multiple of 64; 64 bits also where addresses have 32, so that none are
    // lost. Throws std::bad_alloc.
    explicit Aligned(uint64_t bytes) {
        if (bytes == 0) return;
        if (bytes > SIZE_MAX - 63) throw std::bad_alloc();
        bytes_ = (static_cast<size_t>(bytes) + 63) / 64 * 64;
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
