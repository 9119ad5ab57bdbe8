// Launches of CUDA kernels, and conversion of CUDA errors to exceptions. Kernels are never launched with <<<>>>,
// so that the same sources also build with a host compiler over the emulation of a CUDA block that the tests use.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <new>
#include <stdexcept>
#include <string>

namespace lumigrad {

// The CUDA runtime refused a call, or a kernel failed earlier on this device.
class DeviceError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device has no memory left for a buffer.
class DeviceMemoryError : public std::bad_alloc {
 public:
  explicit DeviceMemoryError(std::string message) : message_(std::move(message)) {}
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

inline std::string describe(cudaError_t status, const char* doing) {
  return std::string("CUDA: ") + doing + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")";
}

// Throws unless the call succeeded. `doing` describes the call, for the message.
inline void check(cudaError_t status, const char* doing) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // Clears the error, so that the next call does not report it again.
  if (status == cudaErrorMemoryAllocation) throw DeviceMemoryError(describe(status, doing));
  throw DeviceError(describe(status, doing));
}

// Starts `kernel` on `stream` and returns immediately. An empty grid does nothing and is not an error. Errors while the
// kernel runs are reported by a later call on the same device.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared, cudaStream_t stream,
            Arguments&&... arguments) {
  static_assert(sizeof...(Parameters) == sizeof...(Arguments), "one argument for each parameter of the kernel");
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...), "launching a kernel");
}

// Blocks of `size` threads that cover `count` items.
inline unsigned blocks_for(std::size_t count, unsigned size) {
  return static_cast<unsigned>((count + size - 1) / size);
}

// Makes a device the current one for as long as the guard lives.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "asking for the current device");
    if (device != before_) check(cudaSetDevice(device), "choosing a device");
    changed_ = device != before_;
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }

 private:
  int before_ = 0;
  bool changed_ = false;
};

}  // namespace lumigrad
