// The number of (tile, item) pairs of a call, for which the host allocates memory.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <deque>
#include <map>

namespace lumigrad {

// Counts on their way from the device to the host: of pairs, and of places of items.
class PairCount {
 public:
  PairCount();
  PairCount(const PairCount&) = delete;
  PairCount& operator=(const PairCount&) = delete;
  ~PairCount();

  // Queues the copy of `count` numbers, at most two, from the device.
  void copy(const unsigned long long* numbers, int count, cudaStream_t stream);
  // Waits for the copy, not for work queued after it; returns one of the numbers.
  std::size_t wait(int number = 0) const;
  // Whether the copy is complete, so that `wait` returns at once.
  bool has_come() const;

 private:
  unsigned long long* place_ = nullptr;  // Pinned host memory.
  cudaEvent_t copied_ = nullptr;
};

// The number of pairs that similar calls allocate memory for without waiting for their own count: the count of recent
// calls and some more. Counts arrive later. A call with more pairs does without lists.
class PairCapacities {
 public:
  // Traits by which similar calls are found, and the number of items, with which the pairs grow.
  struct Kind {
    int views, width, height;
    std::size_t items;
  };

  // The pairs to allocate memory for; 0 if no similar call is known, or there may be more than `limit`.
  std::size_t room_for(const Kind& kind, std::size_t limit);
  // Queues the copy of a call's count, which is read once it has arrived.
  void copy(const Kind& kind, const unsigned long long* pairs, cudaStream_t stream);
  // Records the count of a call.
  void note(const Kind& kind, std::size_t pairs);

 private:
  struct Sent {
    PairCount count;
    Kind kind{};
    bool is_open = false;
  };
  struct Known {
    std::size_t items = 0;
    std::deque<std::size_t> pairs;
  };
  static constexpr std::size_t kSent = 8, kKnown = 64, kKinds = 8;

  void receive();

  std::array<Sent, kSent> sent_;
  std::size_t next_ = 0;
  std::map<std::array<int, 3>, Known> known_;
};

// The most pairs, up to `limit`, that fit in the memory that the calling thread may still take.
std::size_t pairs_within_room(std::size_t limit);

}  // namespace lumigrad
