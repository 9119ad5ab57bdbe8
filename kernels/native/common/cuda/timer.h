// Times of the stages of an operator on the device, measured with events on its stream, without synchronisation.
#pragma once

#include <cuda_runtime.h>

#include <string>
#include <utility>
#include <vector>

namespace lumigrad {

class DeviceTimer {
 public:
  // Starts the time now, on `stream`.
  explicit DeviceTimer(cudaStream_t stream);
  DeviceTimer(DeviceTimer&& other) noexcept = default;
  DeviceTimer& operator=(DeviceTimer&& other) noexcept = default;
  ~DeviceTimer();

  // Ends the stage that ran since the last mark. Stages of the same name are added up.
  void mark(const char* stage);
  // Whether the device has passed the last mark.
  bool finished() const;
  // Milliseconds of each stage, in the order of their first marks; empty while the device is still at work.
  std::vector<std::pair<std::string, double>> milliseconds() const;

 private:
  struct Mark {
    const char* stage;
    cudaEvent_t event;
  };
  int device_ = 0;
  cudaStream_t stream_ = nullptr;
  std::vector<Mark> marks_;
};

}  // namespace lumigrad
