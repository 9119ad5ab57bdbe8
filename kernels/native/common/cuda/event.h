// A point in a stream that other streams and the host can wait for.
#pragma once

#include <cuda_runtime.h>

#include "common/cuda/launch.h"

namespace lumigrad {

class DeviceEvent {
 public:
  // Records the work that is queued on `stream` so far.
  explicit DeviceEvent(cudaStream_t stream) : DeviceEvent() { record(stream); }
  DeviceEvent(const DeviceEvent&) = delete;
  DeviceEvent& operator=(const DeviceEvent&) = delete;
  ~DeviceEvent() { cudaEventDestroy(event_); }

  void record(cudaStream_t stream) { check(cudaEventRecord(event_, stream), "recording an event"); }
  // Makes work that is queued on `stream` from now on wait.
  void delay(cudaStream_t stream) const { check(cudaStreamWaitEvent(stream, event_, 0), "waiting for another stream"); }
  // Makes the host wait.
  void synchronize() const noexcept { cudaEventSynchronize(event_); }
  // Makes the host wait, asleep, since there may be many waiting threads. Throws if work on the device has failed.
  void wait() const { check(cudaEventSynchronize(event_), "waiting for the device"); }

 private:
  DeviceEvent() {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming | cudaEventBlockingSync), "creating an event");
  }

  cudaEvent_t event_ = nullptr;
};

}  // namespace lumigrad
