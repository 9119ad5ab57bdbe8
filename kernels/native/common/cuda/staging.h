// Asynchronous copies from the host to the device, through pinned staging buffers.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <vector>

namespace lumigrad {

// Belongs to one device; one call at a time.
class DeviceStaging {
 public:
  DeviceStaging() = default;
  DeviceStaging(const DeviceStaging&) = delete;
  DeviceStaging& operator=(const DeviceStaging&) = delete;
  ~DeviceStaging();

  // Queues the copy; `from` may change as soon as this returns.
  void copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

 private:
  struct Block {
    void* data;
    std::size_t bytes;
    cudaEvent_t done;  // Recorded after the last copy from this buffer.
  };
  Block& take(std::size_t bytes);

  std::vector<Block> blocks_;
};

}  // namespace lumigrad
