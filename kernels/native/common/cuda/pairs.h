// The number of (tile, item) pairs of a call, for which the host makes room.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <deque>
#include <map>

namespace lumigrad {

// Numbers that the device computes, on their way to the host: of pairs, and of what has a place among the items.
class PairCount {
 public:
  PairCount();
  PairCount(const PairCount&) = delete;
  PairCount& operator=(const PairCount&) = delete;
  ~PairCount();

  // Queues the copy of `count` numbers on the device, two at the most.
  void copy(const unsigned long long* numbers, int count, cudaStream_t stream);
  // Waits for the copy, not for what was queued after it; returns one of the numbers.
  std::size_t wait(int number = 0) const;
  // Whether the copy has been made: `wait` would return at once.
  bool has_come() const;

 private:
  unsigned long long* place_ = nullptr;  // Memory of the host that the device can reach.
  cudaEvent_t copied_ = nullptr;
};

// How many pairs calls that are alike make room for, without waiting for the number: what the last of them had, and
// some more. Their numbers come later. A call with more pairs has to do without lists.
class PairCapacities {
 public:
  // Traits of a call by which similar calls are found, and its number of items, with which the pairs grow.
  struct Kind {
    int views, width, height;
    std::size_t items;
  };

  // The pairs to make room for; 0: none of the kind are known, or they may be more than `limit`.
  std::size_t room_for(const Kind& kind, std::size_t limit);
  // Queues the copy of the number of a call, which is read once it has come.
  void copy(const Kind& kind, const unsigned long long* pairs, cudaStream_t stream);
  // Takes note of the number of a call.
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

// The most pairs that may be listed, at most `limit`, in the memory that the calling thread may still take.
std::size_t pairs_within_room(std::size_t limit);

}  // namespace lumigrad
