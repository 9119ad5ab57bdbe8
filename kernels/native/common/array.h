// Numbers in memory from the pool.
#pragma once

#include <cstddef>
#include <type_traits>
#include <utility>

#include "common/pool.h"

namespace lumigrad {

// `size` values, undefined at first; `room` for more may lie behind them, which size() does not tell of.
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
