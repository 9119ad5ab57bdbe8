// A native job for tests: it takes time and memory, and fails, as requested.
#pragma once

#include <unistd.h>

#include <chrono>
#include <stdexcept>
#include <thread>

#include "common/room.h"
#include "common/threads.h"
#include "serving/job.h"

namespace lumigrad::serving {

class ProbeJob : public NativeJob {
 public:
  using NativeJob::NativeJob;

  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* each : batch) {
      auto& probe = static_cast<ProbeJob&>(*each);
      probe.together = static_cast<int>(batch.size());
      probe.thread = static_cast<int>(gettid());
      if (probe.fails) throw std::runtime_error("the probe was to fail");
      memory_room()->take(probe.asked_bytes);
      const auto until = Clock::now() + std::chrono::duration<double>(probe.seconds);
      do {
        check_stop();
        std::this_thread::sleep_for(std::chrono::milliseconds(probe.seconds > 0 ? 1 : 0));
      } while (Clock::now() < until);
    }
  }

  bool runs_anywhere() const override { return anywhere; }

  double seconds = 0;
  bool anywhere = false;
  std::size_t asked_bytes = 0;
  bool fails = false;
  int together = 0;  // The number of jobs in its batch.
  int thread = 0;    // The system's number of the thread on which the job ran.
};

}  // namespace lumigrad::serving
