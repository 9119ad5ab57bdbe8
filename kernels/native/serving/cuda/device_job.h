// Jobs that read the payload of a request, on a CUDA device.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "serving/cuda/streams.h"
#include "serving/passes/payload_job.h"

namespace lumigrad::serving {

// The device's thread queues the kernels and copies, and the call's thread waits for them. `Device` is the state that
// the jobs of a device share, including `streams`.
template <class Base, class Device>
class DeviceJob : public Base {
 public:
  template <class... Arguments>
  explicit DeviceJob(std::shared_ptr<Device> device, Arguments&&... arguments)
      : Base(std::forward<Arguments>(arguments)...), device_(std::move(device)) {}

  void run(std::span<NativeJob* const> batch) final {
    try {
      for (NativeJob* job : batch) static_cast<DeviceJob*>(job)->queue_all();
    } catch (...) {
      // The device must finish before the memory is returned.
      device_->streams.finish();
      throw;
    }
  }

  void complete() final {
    const Clock::time_point begun = Clock::now();
    const DeviceGuard guard(device_->streams.device);
    download_->wait();
    send(this->staging);
    for (const DeviceTimer& timer : timers_) add_times(timer, this->stages(), this->times.data());
    download_.reset();
    this->download = 1e3 * seconds_of(Clock::now() - begun);
  }

 protected:
  // Queues the kernels, adds their timers to `timers` and their results to the download.
  virtual void queue(Download& download, std::vector<DeviceTimer>& timers) = 0;
  // Writes the payload of the reply from the results, which follow each other in memory.
  virtual void send(char* results) = 0;

  const std::shared_ptr<Device> device_;

 private:
  void queue_all() {
    download_.emplace();
    queue(*download_, timers_);
    download_->start(device_->streams, this->staging);
  }

  std::optional<Download> download_;
  std::vector<DeviceTimer> timers_;
};

}  // namespace lumigrad::serving
