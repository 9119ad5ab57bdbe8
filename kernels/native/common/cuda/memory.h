// A cache of device memory: freed blocks are reused on the same stream, so that repeated calls of one size neither
// allocate nor wait for the device.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace lumigrad {

// A block of at least `bytes` bytes on the current device, for work on `stream`, aligned to 256; contents are
// undefined. Thread-safe. Throws DeviceMemoryError, or NoRoom if the calling thread may not take as much (see room.h).
void* device_take(std::size_t bytes, cudaStream_t stream);
// Gives a block back. Work that was queued on its stream may still use it; work on other streams may not. Null is
// ignored.
void device_give(void* block) noexcept;
// Number of blocks allocated from the driver since the process started.
std::uint64_t device_system_allocations();
// Bytes held on a device, in use or kept.
std::uint64_t device_bytes(int device);
// Waits for the current device and returns its blocks that are not in use to the driver.
void device_trim();
// Registers host memory with CUDA ("pins" it), so that copies to and from it do not occupy the CPU; returns the error's
// name if CUDA refuses, "" otherwise. `memory` must begin on a page boundary.
std::string pin_host(void* memory, std::size_t bytes);
// Undoes pin_host, once the current device has finished all work that may use the memory.
void unpin_host(void* memory) noexcept;

// An array from the pool, tied to one stream; growing loses the contents.
template <class T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(std::size_t count, cudaStream_t stream)
      : data_(static_cast<T*>(device_take(count * sizeof(T), stream))), size_(count) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() { device_give(data_); }

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lumigrad
