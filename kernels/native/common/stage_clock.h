// Wall-clock times of the stages of a call on the CPU.
#pragma once

#include <chrono>

namespace lumigrad {

inline constexpr int kMaxStages = 6;

// Calls `stage(i)` when stage i ends.
class StageClock {
 public:
  explicit StageClock(double* milliseconds) : milliseconds_(milliseconds), last_(now()) {
    for (int i = 0; i < kMaxStages; ++i) milliseconds_[i] = 0.0;
  }
  void stage(int index) {
    const double time = now();
    milliseconds_[index] += time - last_;
    last_ = time;
  }

 private:
  static double now() {
    using namespace std::chrono;
    return duration<double, std::milli>(steady_clock::now().time_since_epoch()).count();
  }
  double* milliseconds_;
  double last_;
};

}  // namespace lumigrad
