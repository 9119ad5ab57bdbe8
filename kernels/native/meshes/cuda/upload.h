// Copies of arrays to the device.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>

#include "common/cuda/memory.h"
#include "common/cuda/staging.h"

namespace lumigrad::meshes {

// Copies in pieces, so that the host's staging memory stays small and is reused.
template <class T>
DeviceBuffer<T> upload(const T* values, std::size_t count, DeviceStaging& staging, cudaStream_t stream) {
  constexpr std::size_t kPiece = (std::size_t{4} << 20) / sizeof(T);
  DeviceBuffer<T> buffer(count, stream);
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t length = std::min(kPiece, count - begin);
    staging.copy(buffer.data() + begin, values + begin, length * sizeof(T), stream);
  }
  return buffer;
}

}  // namespace lumigrad::meshes
