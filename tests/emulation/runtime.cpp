// The runtime's functions: allocation with guards, copies, and events that are clocks.
#include "emulation/runtime.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "block.h"
#include "emulator.h"

struct EmulatedEvent {
  std::chrono::steady_clock::time_point time;
  bool recorded = false;
};

namespace {

using lumigrad::emulation::Block;

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xA5;

// In front of each block; as long as the alignment, so that the block behind it is aligned.
struct alignas(kAlignment) Header {
  std::size_t bytes;
};

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<int> failing{0};
std::atomic<std::size_t> allocated{0};

cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

}  // namespace

namespace lumigrad::emulation {

cudaError_t launch_grid(const cudaLaunchConfig_t& config, const std::function<void()>& body) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const auto threads = static_cast<unsigned long long>(block.x) * block.y * block.z;
  if (threads == 0 || threads > Block::kMaxThreads || block.z > 64) return answer(cudaErrorInvalidConfiguration);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return answer(cudaErrorInvalidConfiguration);
  if (grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535) return answer(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > Block::kMaxShared) return answer(cudaErrorInvalidValue);
  run_grid(grid, block, config.dynamicSmemBytes, body);
  return cudaSuccess;
}

void fail_allocations(int count) { failing.store(count); }

std::size_t allocated_bytes() { return allocated.load(); }

}  // namespace lumigrad::emulation

const char* cudaGetErrorName(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
  }
  return "unknown";
}

const char* cudaGetErrorString(cudaError_t status) {
  switch (status) {
    case cudaSuccess:
      return "no error";
    case cudaErrorInvalidValue:
      return "invalid argument";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorInvalidConfiguration:
      return "invalid configuration argument";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle:
      return "invalid resource handle";
    case cudaErrorNotReady:
      return "device not ready";
  }
  return "unknown error";
}

cudaError_t cudaGetLastError() {
  const cudaError_t status = last_error;
  last_error = cudaSuccess;
  return status;
}

cudaError_t cudaGetDevice(int* device) {
  *device = 0;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int device) { return answer(device == 0 ? cudaSuccess : cudaErrorInvalidDevice); }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 1;
  return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }

cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }

cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t event, unsigned) {
  return answer(event == nullptr ? cudaErrorInvalidResourceHandle : cudaSuccess);
}

cudaError_t cudaMalloc(void** block, std::size_t bytes) {
  int count = failing.load();
  while (count > 0) {
    if (failing.compare_exchange_weak(count, count - 1)) return answer(cudaErrorMemoryAllocation);
  }
  const std::align_val_t alignment{kAlignment};
  void* memory = ::operator new(sizeof(Header) + bytes + kGuardBytes, alignment, std::nothrow);
  if (memory == nullptr) return answer(cudaErrorMemoryAllocation);
  auto* header = new (memory) Header{bytes};
  auto* data = reinterpret_cast<unsigned char*>(header + 1);
  // As undefined as memory can be: NaN as float, -1 as int.
  std::memset(data, 0xFF, bytes);
  std::memset(data + bytes, kGuard, kGuardBytes);
  allocated += bytes;
  *block = data;
  return cudaSuccess;
}

cudaError_t cudaFree(void* block) {
  if (block == nullptr) return cudaSuccess;
  Header* header = static_cast<Header*>(block) - 1;
  const auto* guard = static_cast<unsigned char*>(block) + header->bytes;
  for (std::size_t i = 0; i < kGuardBytes; ++i) {
    if (guard[i] != kGuard) throw lumigrad::emulation::Error("a kernel wrote behind a block of device memory");
  }
  allocated -= header->bytes;
  ::operator delete(header, std::align_val_t{kAlignment});
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void** block, std::size_t bytes) {
  *block = std::malloc(bytes);
  return answer(*block == nullptr ? cudaErrorMemoryAllocation : cudaSuccess);
}

cudaError_t cudaFreeHost(void* block) {
  std::free(block);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *total = std::size_t{16} << 30;
  *available = *total - allocated.load();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* block, int value, std::size_t bytes, cudaStream_t) {
  std::memset(block, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new EmulatedEvent;
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t) {
  event->time = std::chrono::steady_clock::now();
  event->recorded = true;
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start->recorded || !end->recorded) return answer(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return cudaSuccess;
}
