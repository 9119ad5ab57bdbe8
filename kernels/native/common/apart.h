// Loops that run apart from those of all other threads.
#pragma once

namespace lumigrad {

// While it lives, the loops of this thread (see threads.h) run on a pool apart from the one that all others share:
// those others, which may be a device's own, never wait for them.
class Apart {
 public:
  Apart();
  ~Apart();
  Apart(const Apart&) = delete;
  Apart& operator=(const Apart&) = delete;

 private:
  const bool before_;
};

}  // namespace lumigrad
