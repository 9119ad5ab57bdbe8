// Loops on a thread pool of their own.
#pragma once

namespace lumigrad {

// While it lives, the loops of this thread (see threads.h) run on a separate pool instead of the one that all other
// threads share, so that the other threads, such as a device's, never wait for them.
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
