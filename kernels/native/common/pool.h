// Memory that is kept: freed blocks are handed out again, so that a steady stream of calls allocates nothing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lumigrad {

// A block of at least `bytes` and `spare` bytes, aligned to 64; contents are undefined. Thread-safe. Throws
// std::bad_alloc.
void* pool_take(std::size_t bytes, std::size_t spare = 0);
// Gives a block back. Null is ignored.
void pool_give(void* block) noexcept;
// Blocks asked of the system since the process started.
std::uint64_t pool_system_allocations();
// Bytes held, in use or kept.
std::uint64_t pool_bytes();
// Returns the blocks not in use to the system.
void pool_trim();

// A grow-only block from the pool; growing loses the contents.
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer();

  // Room for `count` values of type T.
  template <class T>
  __attribute__((always_inline)) T* ensure(std::size_t count) {
    return static_cast<T*>(ensure_bytes(count * sizeof(T)));
  }
  std::size_t bytes() const { return capacity_; }

 private:
  void* ensure_bytes(std::size_t bytes);

  void* data_ = nullptr;
  std::size_t capacity_ = 0;
};

}  // namespace lumigrad
