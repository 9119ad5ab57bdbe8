#include "common/cuda/pairs.h"

#include <algorithm>
#include <cstdint>

#include "common/cuda/launch.h"
#include "common/room.h"
#include "common/threads.h"

namespace lumigrad {

namespace {
constexpr int kNumbers = 2;
}  // namespace

PairCount::PairCount() {
  check(cudaMallocHost(reinterpret_cast<void**>(&place_), kNumbers * sizeof(*place_)), "allocating host memory");
  const cudaError_t status = cudaEventCreateWithFlags(&copied_, cudaEventDisableTiming);
  if (status != cudaSuccess) cudaFreeHost(place_);
  check(status, "creating an event");
}

PairCount::~PairCount() {
  cudaEventDestroy(copied_);
  cudaFreeHost(place_);
}

void PairCount::copy(const unsigned long long* numbers, int count, cudaStream_t stream) {
  check(cudaMemcpyAsync(place_, numbers, count * sizeof(*numbers), cudaMemcpyDeviceToHost, stream), "copying counts");
  check(cudaEventRecord(copied_, stream), "recording an event");
}

std::size_t PairCount::wait(int number) const {
  check(cudaEventSynchronize(copied_), "counting the pairs of tiles and items");
  // The last chance to stop: the rest takes most of the time and cannot be stopped.
  check_stop();
  return static_cast<std::size_t>(place_[number]);
}

bool PairCount::has_come() const {
  const cudaError_t status = cudaEventQuery(copied_);
  if (status == cudaErrorNotReady) {
    cudaGetLastError();
    return false;
  }
  check(status, "asking whether a count has come");
  return true;
}

std::size_t PairCapacities::room_for(const Kind& kind, std::size_t limit) {
  // Factors of the largest number: twice as much after few calls, which do not predict later calls well.
  constexpr double kMore = 1.25, kFirst = 2.0;
  constexpr std::size_t kFew = 8, kLeast = 1024;
  receive();
  const auto found = known_.find({kind.views, kind.width, kind.height});
  if (found == known_.end() || found->second.pairs.empty()) return 0;
  const Known& known = found->second;
  const std::size_t largest = *std::max_element(known.pairs.begin(), known.pairs.end());
  const double growth = static_cast<double>(kind.items) / static_cast<double>(std::max<std::size_t>(known.items, 1));
  const double factor = (known.pairs.size() < kFew ? kFirst : kMore) * std::max(1.0, growth);
  const auto room = std::max(kLeast, static_cast<std::size_t>(factor * static_cast<double>(largest)));
  return room <= limit ? room : 0;
}

void PairCapacities::copy(const Kind& kind, const unsigned long long* pairs, cudaStream_t stream) {
  Sent& sent = sent_[next_++ % kSent];
  // If the device is far behind, this number is not read.
  if (sent.is_open) return;
  sent.count.copy(pairs, 1, stream);
  sent.kind = kind;
  sent.is_open = true;
}

void PairCapacities::note(const Kind& kind, std::size_t pairs) {
  if (known_.size() >= kKinds && !known_.contains({kind.views, kind.width, kind.height})) known_.clear();
  Known& known = known_[{kind.views, kind.width, kind.height}];
  known.items = kind.items;
  known.pairs.push_back(pairs);
  if (known.pairs.size() > kKnown) known.pairs.pop_front();
}

void PairCapacities::receive() {
  for (Sent& sent : sent_) {
    if (!sent.is_open || !sent.count.has_come()) continue;
    sent.is_open = false;
    note(sent.kind, sent.count.wait());
  }
}

std::size_t pairs_within_room(std::size_t limit) {
  // Memory of a pair: its tile and its entry, both sorted, and that of the sort; blocks may be larger than needed.
  constexpr std::int64_t kBytes = 32;
  const MemoryRoom* room = memory_room();
  if (room == nullptr) return limit;
  return std::min(limit, static_cast<std::size_t>(std::max<std::int64_t>(room->left(), 0) / kBytes));
}

}  // namespace lumigrad
