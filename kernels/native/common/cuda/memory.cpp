#include "common/cuda/memory.h"

#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/cuda/launch.h"
#include "common/room.h"

namespace lumigrad {
namespace {

constexpr std::size_t kSmallest = 4096;
// A cached block serves requests of at least 1 / kSlack of its size; smaller requests are allocated separately.
constexpr std::size_t kSlack = 2;

struct Block {
  void* data = nullptr;
  std::size_t bytes = 0;
  int device = 0;
  cudaStream_t stream = nullptr;
};

struct Place {
  int device;
  cudaStream_t stream;
  auto operator<=>(const Place&) const = default;
};

struct State {
  std::mutex mutex;
  std::unordered_map<void*, Block> taken;
  std::map<Place, std::multimap<std::size_t, Block>> kept;
  std::map<int, std::uint64_t> bytes;
  std::map<int, std::int64_t> kept_bytes;
  std::uint64_t system_allocations = 0;
};

// Never destroyed: tensors may free blocks while the interpreter is shutting down.
State& state() {
  static State* instance = new State;
  return *instance;
}

// Eight steps per power of two, so that blocks can be reused for nearly equal sizes.
std::size_t rounded(std::size_t bytes) {
  if (bytes <= kSmallest) return kSmallest;
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

int current_device() {
  int device = 0;
  check(cudaGetDevice(&device), "asking for the current device");
  return device;
}

// Frees the cached blocks of `device`; the device must no longer use them.
void free_kept(State& s, int device) {
  for (auto& [place, blocks] : s.kept) {
    if (place.device != device) continue;
    for (auto& [bytes, block] : blocks) {
      cudaFree(block.data);
      s.bytes[device] -= bytes;
    }
    blocks.clear();
  }
  s.kept_bytes[device] = 0;
}

void wait_and_free_kept(State& s, int device) {
  check(cudaDeviceSynchronize(), "waiting for the device, to free memory");
  free_kept(s, device);
}

void* allocate(State& s, int device, std::size_t bytes) {
  void* data = nullptr;
  cudaError_t status = cudaMalloc(&data, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    wait_and_free_kept(s, device);
    status = cudaMalloc(&data, bytes);
  }
  check(status, ("allocating " + std::to_string(bytes) + " bytes on the device").c_str());
  s.system_allocations += 1;
  s.bytes[device] += bytes;
  return data;
}

}  // namespace

void* device_take(std::size_t bytes, cudaStream_t stream) {
  const std::size_t wanted = rounded(bytes);
  const int device = current_device();
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto& kept = s.kept[{device, stream}];
  Block block{nullptr, wanted, device, stream};
  const auto found = kept.lower_bound(wanted);
  const bool is_kept = found != kept.end() && found->first <= wanted * kSlack;
  if (is_kept) block = found->second;
  MemoryRoom* room = memory_room();
  if (room != nullptr) room->take(block.bytes);
  if (is_kept) {
    kept.erase(found);
    s.kept_bytes[device] -= static_cast<std::int64_t>(block.bytes);
  } else {
    try {
      // The device must have the memory that the call may still take.
      if (room != nullptr && s.kept_bytes[device] > room->left()) wait_and_free_kept(s, device);
      block.data = allocate(s, device, wanted);
    } catch (...) {
      if (room != nullptr) room->give(wanted);
      throw;
    }
  }
  s.taken.emplace(block.data, block);
  return block.data;
}

void device_give(void* data) noexcept {
  if (data == nullptr) return;
  State& s = state();
  std::lock_guard lock(s.mutex);
  const auto found = s.taken.find(data);
  if (found == s.taken.end()) return;
  const Block block = found->second;
  s.taken.erase(found);
  if (MemoryRoom* room = memory_room()) room->give(block.bytes);
  s.kept_bytes[block.device] += static_cast<std::int64_t>(block.bytes);
  s.kept[{block.device, block.stream}].emplace(block.bytes, block);
}

std::uint64_t device_system_allocations() {
  std::lock_guard lock(state().mutex);
  return state().system_allocations;
}

std::uint64_t device_bytes(int device) {
  std::lock_guard lock(state().mutex);
  return state().bytes[device];
}

void device_trim() {
  check(cudaDeviceSynchronize(), "waiting for the device, to free memory");
  State& s = state();
  const int device = current_device();
  std::lock_guard lock(s.mutex);
  free_kept(s, device);
}

std::string pin_host(void* memory, std::size_t bytes) {
  const cudaError_t status = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
  if (status == cudaSuccess) return "";
  // Clears the error, which the next launch would report otherwise.
  cudaGetLastError();
  return cudaGetErrorName(status);
}

void unpin_host(void* memory) noexcept {
  // Both calls fail only if the device is lost, which other calls report.
  cudaDeviceSynchronize();
  cudaHostUnregister(memory);
  cudaGetLastError();
}

}  // namespace lumigrad
