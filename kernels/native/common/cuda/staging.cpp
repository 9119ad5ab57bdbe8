#include "common/cuda/staging.h"

#include <algorithm>
#include <cstring>

#include "common/cuda/launch.h"

namespace lumigrad {
namespace {

constexpr std::size_t kSmallest = 64 * 1024;

bool passed(cudaEvent_t event) {
  const cudaError_t status = cudaEventQuery(event);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, "asking whether a copy has finished");
  return true;
}

}  // namespace

DeviceStaging::~DeviceStaging() {
  for (const Block& block : blocks_) {
    cudaEventDestroy(block.done);
    cudaFreeHost(block.data);
  }
}

DeviceStaging::Block& DeviceStaging::take(std::size_t bytes) {
  for (Block& block : blocks_) {
    if (block.bytes >= bytes && passed(block.done)) return block;
  }
  Block block{nullptr, std::max(bytes, kSmallest), nullptr};
  check(cudaMallocHost(&block.data, block.bytes), "allocating host memory");
  const cudaError_t status = cudaEventCreateWithFlags(&block.done, cudaEventDisableTiming);
  if (status != cudaSuccess) cudaFreeHost(block.data);
  check(status, "creating an event");
  return blocks_.emplace_back(block);
}

void DeviceStaging::copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0) return;
  Block& block = take(bytes);
  std::memcpy(block.data, from, bytes);
  check(cudaMemcpyAsync(to, block.data, bytes, cudaMemcpyHostToDevice, stream), "copying to the device");
  check(cudaEventRecord(block.done, stream), "recording an event");
}

}  // namespace lumigrad
