// Native jobs that read the payload of a request and write the payload of a reply.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string_view>

#include "serving/job.h"

namespace lumigrad::serving {

constexpr int kMostKernelTimes = 8;

class PayloadJob : public NativeJob {
 public:
  using NativeJob::NativeJob;

  // Copies what the job needs from the request's payload; false if the request must take the general path. Runs before
  // the job is queued, on the thread that will wait for it.
  virtual bool accept(std::string_view request) = 0;
  // Completes the reply's payload once the job is done, on the same thread. Throws if the device has failed.
  virtual void complete() {}
  // Names of the kernels' stages in replies.
  virtual std::span<const char* const> stages() const = 0;

  // The reply's payload: valid until the job has ended, for ever if its outcome is kLost.
  char* payload = nullptr;
  // Memory of the size that the engine requests, pinned if possible, and valid as long as the payload.
  char* staging = nullptr;
  // Times of a complete job: milliseconds of the kernels by stage, and of moving inputs and outputs.
  std::array<double, kMostKernelTimes> times{};
  double upload = 0, download = 0;
};

}  // namespace lumigrad::serving
