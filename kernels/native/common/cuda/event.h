// A point in a stream, for which other streams and the host can wait.
#pragma once

#include <cuda_runtime.h>

#include "common/cuda/launch.h"

namespace lumigrad {

class DeviceEvent {
 public:
  // The work that is queued on `stream` now.
  explicit DeviceEvent(cudaStream_t stream) : DeviceEvent() { record(stream); }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  ~DeviceEvent() { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "recording an event"); }
  // Work that is queued on `stream` from now on waits.
  void delay(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "waiting for another stream"); }
  // The host waits.
  void synchronize() const noexcept { cudaEventSynchronize(event_); }
  // The same, for threads that may be many: they sleep. Throws if work on the device has failed.
  void wait() const { check(cudaEventSynchronize(event_), "waiting for the device"); }

 private:
  DeviceEvent() {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "creating an event");
  }

  cudaEvent_t event_ = nullptr;
};

}  // namespace lumigrad
