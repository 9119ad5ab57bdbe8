// Memory that is kept: freed blocks are handed out again, so that a steady stream of calls allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lumigrad {

// A block of at least `bytes` bytes, aligned to 64; contents are undefined. Thread-safe. Throws std::bad_alloc.
void* pool_take(std::size_t bytes);
// Gives a block back. Null is ignored.
void pool_give(void* block) noexcept;
// Blocks asked of the system since the process started.
std::uint64_t pool_system_allocations();
// Bytes held, in use or kept.
std::uint64_t pool_bytes();
// Returns the blocks not in use to the system.
void pool_trim();

// A grow-only array from the pool; growing loses the contents.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { pool_give(data_); }

  T* ensure(std::size_t count) {
    if (count > capacity_) {
      pool_give(data_);
      data_ = nullptr;
      capacity_ = 0;
      // A quarter more than asked, so that slowly growing scenes do not reallocate at each call.
      const std::size_t wanted = count + count / 4;
      data_ = static_cast<T*>(pool_take(wanted * sizeof(T)));
      capacity_ = wanted;
    }
    return data_;
  }

  T* data() const { return data_; }

 private:
  T* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace lumigrad
