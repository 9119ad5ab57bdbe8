// The progress of a call with its caller. Functions need the GIL, which guards mutable state.
#pragma once

#include <algorithm>
#include <cstddef>

#include "serving/job.h"

namespace lumigrad::serving {

// Bytes of a payload that a caller must send or receive within the stall timeout.
constexpr std::size_t kProgressBytes = 64 << 10;

// The time that a call has waited for its caller since the last progress, not counting time when the worker was busy.
class Wait {
 public:
  void begin() { since_ = Clock::now(); }
  void end() {
    waited_ = time();
    since_ = kNever;
  }
  bool is_on() const { return since_ != kNever; }
  double seconds() const { return seconds_of(time()); }
  // Counts bytes that were received or sent.
  void moved(std::size_t bytes) {
    bytes_ += bytes;
    if (bytes_ >= kProgressBytes) restart();
  }
  void restart() {
    waited_ = {};
    bytes_ = 0;
  }

 private:
  static constexpr Clock::time_point kNever = Clock::time_point::max();

  Clock::duration time() const { return is_on() ? waited_ + (Clock::now() - since_) : waited_; }

  Clock::time_point since_ = kNever;
  Clock::duration waited_{};
  std::size_t bytes_ = 0;
};

struct Progress {
  // Waits for requests, and for the caller to take replies; separate, because they overlap in a long call.
  Wait receiving, sending;
  // Whether the first message has arrived.
  bool has_begun = false;
  // Whether the call has many requests, and when the last one arrived or was answered.
  bool is_long = false;
  Clock::time_point renewed{};
  // Whether a long call has received part of a request, but not its whole payload.
  bool is_payload_due = false;

  void renew() {
    is_long = true;
    renewed = Clock::now();
  }
};

}  // namespace lumigrad::serving
