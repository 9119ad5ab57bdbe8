// The runtime's functions: allocation with guards, copies, launches and events on streams.
#include "emulation/runtime.h"

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <new>

#include "block.h"
#include "emulator.h"
#include "streams.h"

// Only its address is used.
struct EmulatedStream {};

struct EmulatedEvent {
  // The last recording; null if there was none.
  std::shared_ptr<lumigrad::emulation::Recording> recording;
};

namespace {

namespace emulation = lumigrad::emulation;
using lumigrad::emulation::Block;

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGuardBytes = 256;
constexpr unsigned char kGuard = 0xA5;

// Precedes each block; as large as the alignment, so that the block behind it is aligned.
struct alignas(kAlignment) Header {
  std::size_t bytes;
};

thread_local cudaError_t last_error = cudaSuccess;
std::atomic<int> failing{0};
std::atomic<std::size_t> allocated{0};

// The begin and end of registered memory.
std::mutex registered_mutex;
std::map<const char*, const char*> registered;

cudaError_t answer(cudaError_t status) {
  if (status != cudaSuccess) last_error = status;
  return status;
}

}  // namespace

namespace lumigrad::emulation {

cudaError_t launch_grid(const cudaLaunchConfig_t& config, std::function<void()> body) {
  const dim3 grid = config.gridDim, block = config.blockDim;
  const auto threads = static_cast<unsigned long long>(block.x) * block.y * block.z;
  if (threads == 0 || threads > Block::kMaxThreads || block.z > 64) return answer(cudaErrorInvalidConfiguration);
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return answer(cudaErrorInvalidConfiguration);
  if (grid.x > 0x7FFFFFFF || grid.y > 65535 || grid.z > 65535) return answer(cudaErrorInvalidConfiguration);
  if (config.dynamicSmemBytes > Block::kMaxShared) return answer(cudaErrorInvalidValue);
  queue_work(config.stream, [grid, block, shared = config.dynamicSmemBytes, body = std::move(body)] {
    run_grid(grid, block, shared, body);
  });
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
    case cudaErrorHostMemoryAlreadyRegistered:
      return "cudaErrorHostMemoryAlreadyRegistered";
    case cudaErrorHostMemoryNotRegistered:
      return "cudaErrorHostMemoryNotRegistered";
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
    case cudaErrorHostMemoryAlreadyRegistered:
      return "part or all of the requested memory range is already mapped";
    case cudaErrorHostMemoryNotRegistered:
      return "pointer does not correspond to a registered memory region";
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

cudaError_t cudaDeviceSynchronize() {
  emulation::run_all_streams();
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  *stream = new EmulatedStream;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  emulation::run_stream(stream);
  delete stream;
  return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  emulation::run_stream(stream);
  return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (event == nullptr) return answer(cudaErrorInvalidResourceHandle);
  // An event that was never recorded needs no wait.
  if (event->recording) emulation::queue_wait(stream, event->recording);
  return cudaSuccess;
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
  // Stands for undefined memory: NaN as float, -1 as int.
  std::memset(data, emulation::is_stubbed() ? 0 : 0xFF, bytes);
  std::memset(data + bytes, kGuard, kGuardBytes);
  allocated += bytes;
  *block = data;
  return cudaSuccess;
}

cudaError_t cudaFree(void* block) {
  if (block == nullptr) return cudaSuccess;
  // Waits for all of the device's work first, as CUDA does.
  emulation::run_all_streams();
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
  void* memory = ::operator new(sizeof(Header) + bytes, std::align_val_t{kAlignment}, std::nothrow);
  if (memory == nullptr) return answer(cudaErrorMemoryAllocation);
  *block = new (memory) Header{bytes} + 1;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void* block) {
  if (block == nullptr) return cudaSuccess;
  Header* header = static_cast<Header*>(block) - 1;
  emulation::check_unused(block, header->bytes);
  ::operator delete(header, std::align_val_t{kAlignment});
  return cudaSuccess;
}

cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  if (bytes == 0) return answer(cudaErrorInvalidValue);
  std::lock_guard lock(registered_mutex);
  const char* begin = static_cast<char*>(memory);
  const auto next = registered.lower_bound(begin);
  const bool overlaps_next = next != registered.end() && next->first < begin + bytes;
  const bool overlaps_last = next != registered.begin() && std::prev(next)->second > begin;
  if (overlaps_next || overlaps_last) return answer(cudaErrorHostMemoryAlreadyRegistered);
  registered.emplace(begin, begin + bytes);
  return cudaSuccess;
}

cudaError_t cudaHostUnregister(void* memory) {
  std::lock_guard lock(registered_mutex);
  const auto found = registered.find(static_cast<char*>(memory));
  if (found == registered.end()) return answer(cudaErrorHostMemoryNotRegistered);
  emulation::check_unused(found->first, static_cast<std::size_t>(found->second - found->first));
  registered.erase(found);
  return cudaSuccess;
}

cudaError_t cudaMemGetInfo(std::size_t* available, std::size_t* total) {
  *total = std::size_t{16} << 30;
  *available = *total - allocated.load();
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  emulation::queue_copy(stream, to, from, bytes, kind);
  return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void* block, int value, std::size_t bytes, cudaStream_t stream) {
  emulation::queue_work(stream, [=] { std::memset(block, value, bytes); });
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

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  event->recording = emulation::queue_recording(stream);
  return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  return answer(event->recording && !event->recording->done ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (event->recording) emulation::run_until(*event->recording);
  return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  if (!start->recording || !end->recording) return answer(cudaErrorInvalidResourceHandle);
  if (!start->recording->done || !end->recording->done) return answer(cudaErrorNotReady);
  *milliseconds = std::chrono::duration<float, std::milli>(end->recording->time - start->recording->time).count();
  return cudaSuccess;
}
