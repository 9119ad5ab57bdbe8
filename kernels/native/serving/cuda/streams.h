// The streams of a device that serves calls, and downloads of jobs' results to the host.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/cuda/event.h"
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/timer.h"

namespace lumigrad::serving {

// Kernels run on one stream, and copies to the host on the other.
struct Streams {
  int device;
  cudaStream_t kernels, copies;

  void finish() const noexcept {
    cudaStreamSynchronize(kernels);
    cudaStreamSynchronize(copies);
  }
};

// Adds a share of the times of a timer's stages to `times`, in the order of their `names` in replies.
inline void add_times(const DeviceTimer& timer, std::span<const char* const> names, double* times, double share = 1.0) {
  constexpr std::size_t kPrefix = std::string_view("kernel.").size();
  for (const auto& [stage, milliseconds] : timer.milliseconds()) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (stage == names[i] + kPrefix) times[i] += share * milliseconds;
    }
  }
}

class Download {
 public:
  // Memory for a result, which kernels write.
  template <class T>
  T* make(std::size_t count, const Streams& streams) {
    buffers_.emplace_back(count * sizeof(T), streams.kernels);
    add(buffers_.back().data(), count * sizeof(T));
    return reinterpret_cast<T*>(buffers_.back().data());
  }
  // Adds a result, whose memory must stay valid until `wait` has returned.
  void add(const void* from, std::size_t bytes) { parts_.emplace_back(from, bytes); }

  // Queues the copies, which fill `to` without gaps and run at the same time as the kernels of later jobs.
  void start(const Streams& streams, char* to) {
    DeviceEvent(streams.kernels).delay(streams.copies);
    for (const auto& [from, bytes] : parts_) {
      check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, streams.copies), "copying to the host");
      to += bytes;
    }
    copied_ = std::make_unique<DeviceEvent>(streams.copies);
  }
  // Waits for the copies, on any thread of this device. Throws if the device has failed.
  void wait() const { copied_->wait(); }

 private:
  std::vector<DeviceBuffer<char>> buffers_;
  std::vector<std::pair<const void*, std::size_t>> parts_;
  std::unique_ptr<DeviceEvent> copied_;
};

}  // namespace lumigrad::serving
