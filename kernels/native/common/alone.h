// Loops that are not worth a second thread.
#pragma once

namespace lumigrad {

// While it lives, the loops of this thread use no other thread (see common/threads.h): waking one takes longer than a
// small loop.
class Alone {
 public:
  Alone();
  ~Alone();
  Alone(const Alone&) = delete;
  Alone& operator=(const Alone&) = delete;
};

}  // namespace lumigrad
