// A memory pool: freed blocks are reused, so that repeated calls of one size allocate nothing. Blocks that were not
// reused for ten seconds are returned to the system when the next block is freed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

namespace lumigrad {

// A block of at least `bytes` and `spare` bytes, aligned to 64; contents are undefined. Thread-safe. Throws
// std::bad_alloc, or NoRoom if the calling thread may not take as much (see room.h).
void* pool_take(std::size_t bytes, std::size_t spare = 0);
// Gives a block back. Null is ignored.
void pool_give(void* block) noexcept;
// Returns a block to the system at once, if no later call is expected to need it. Null is ignored.
void pool_drop(void* block) noexcept;
// Number of blocks allocated from the system since the process started.
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

  // Returns memory for `count` values of type T.
  template <class T>
  __attribute__((always_inline)) T* ensure(std::size_t count) {
    return static_cast<T*>(ensure_bytes(count * sizeof(T)));
  }
  std::size_t bytes() const { return capacity_; }
  // Gives the block back to the pool; the contents are lost.
  void release();
  // Returns the memory to the system if it exceeds 64 MiB; for contents that are no longer needed and whose size
  // depends more on a call's values than on its scene.
  void drop_if_large();

 private:
  void* ensure_bytes(std::size_t bytes);

  void* data_ = nullptr;
  std::size_t capacity_ = 0;
};

// An array in memory from the pool: `size` values, initially undefined, followed by `room` for more, which size() does
// not include.
template <class T>
class Array {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Array() = default;
  explicit Array(std::size_t size, std::size_t room = 0)
      : data_(static_cast<T*>(pool_take((size > room ? size : room) * sizeof(T)))),
        size_(size),
        bytes_((size > room ? size : room) * sizeof(T)) {}
  Array(Array&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Array& operator=(Array&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Array() { pool_give(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return bytes_; }
  T& operator[](std::size_t i) { return data_[i]; }
  const T& operator[](std::size_t i) const { return data_[i]; }
  T* begin() { return data_; }
  T* end() { return data_ + size_; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0, bytes_ = 0;
};

}  // namespace lumigrad
