// How far a call is with its caller. Functions need the interpreter's lock, which guards what changes.
#pragma once

#include <algorithm>
#include <cstddef>

#include "serving/job.h"

namespace lumigrad::serving {

// Bytes of a payload that a caller must send or receive within the time to stall.
constexpr std::size_t kProgressBytes = 64 << 10;

// The time that a call has waited for its caller since the last progress, without that in which the worker was busy.
class Wait {
 public:
  void begin() { since_ = Clock::now(); }
  void end() {
    waited_ = time();
    since_ = kNever;
  }
  bool is_on() const { return since_ != kNever; }
  double seconds() const { return seconds_of(time()); }
  // Bytes that were received or sent.
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
  // For the request, and for the caller to take the reply; separate, because those of a long call overlap.
  Wait receiving, sending;
  // Whether the first message has arrived.
  bool has_begun = false;
  // Whether the call has many requests, and when the last arrived or was answered.
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
