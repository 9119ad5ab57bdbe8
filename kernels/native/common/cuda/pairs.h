// An estimate of the number of (tile, item) pairs of a call, so that the host need not wait for the device's count.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <utility>

namespace lumigrad {

// Where the device writes how many pairs a call had; host memory that it can reach.
class PairCount {
 public:
  PairCount();
  PairCount(const PairCount&) = delete;
  PairCount& operator=(const PairCount&) = delete;
  ~PairCount();

  unsigned long long* place() { return place_; }
  // The last number written; no value before.
  std::optional<std::size_t> read() const;

 private:
  unsigned long long* place_ = nullptr;
};

// Estimates from earlier calls. Calls with about as many items and tiles share an estimate.
class PairRoom {
 public:
  // More pairs than `limit` are not listed: tiles then go through all items, which is slower but needs no memory.
  explicit PairRoom(std::size_t limit) : limit_(limit) {}
  PairRoom(const PairRoom&) = delete;
  PairRoom& operator=(const PairRoom&) = delete;

  // The estimate for calls of this size.
  PairCount& count(std::size_t items, std::size_t tiles) { return of(items, tiles).count; }
  // A quarter more than the pairs of recent calls of this size; 0 beyond the limit; no value if there was no such call.
  std::optional<std::size_t> expected(std::size_t items, std::size_t tiles);
  std::size_t limit() const { return limit_; }
  void set_limit(std::size_t limit) { limit_ = limit; }

 private:
  struct Kind {
    PairCount count;
    std::size_t expected = 0;
  };
  Kind& of(std::size_t items, std::size_t tiles);

  std::map<std::pair<int, int>, Kind> kinds_;
  std::size_t limit_;
};

}  // namespace lumigrad
