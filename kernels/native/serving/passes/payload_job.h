// Native jobs that read the payload of a request and write that of a reply.
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

  // Takes what it needs of the request's payload, of which nothing has to last; false: it is not for this way. Before
  // the queue, on the thread that will wait.
  virtual bool accept(std::string_view request) = 0;
  // Completes the reply's payload, likewise once the job is done. Throws if the device has failed.
  virtual void complete() {}
  // Names of the kernels' stages in replies.
  virtual std::span<const char* const> stages() const = 0;

  // Place of the reply's payload: valid until the job has ended, for ever if its outcome is kLost.
  char* payload = nullptr;
  // Memory of the size that its engine asks for, pinned if it can be; it lasts as long.
  char* staging = nullptr;
  // Times of a job that is complete: milliseconds of the kernels, by stage, and of moving inputs and outputs.
  std::array<double, kMostKernelTimes> times{};
  double upload = 0, download = 0;
};

}  // namespace lumigrad::serving
