#include <algorithm>
#include <bit>

#include "emulator.h"

namespace lumigrad::emulation {
namespace {

// The lane that `lane` reads from; `lane` itself where CUDA defines that a read beyond the segment returns the caller's
// own value.
int source_lane(const Request& request, int lane) {
  // Widths are powers of two.
  const int first = lane & ~(request.width - 1);
  const int within = lane - first;
  switch (request.operation) {
    case Operation::shuffle_up:
      return within - request.parameter >= 0 ? lane - request.parameter : lane;
    case Operation::shuffle_down:
      return within + request.parameter < request.width ? lane + request.parameter : lane;
    case Operation::shuffle_xor: {
      const int source = lane ^ request.parameter;
      return source < first + request.width ? source : lane;
    }
    default:
      return first + (request.parameter & (request.width - 1));
  }
}

std::uint64_t shuffled(const Request* const (&requests)[32], std::uint32_t lanes, int lane) {
  const int source = source_lane(*requests[lane], lane);
  if (source > 31 || (lanes >> source & 1) == 0) {
    fail(std::string(name_of(requests[lane]->operation)) + ": lane " + std::to_string(lane) + " reads from lane " +
             std::to_string(source) + ", which does not take part",
         requests[lane]->site);
  }
  return requests[source]->value;
}

std::uint64_t matching(const Request* const (&requests)[32], std::uint32_t lanes, int lane) {
  std::uint64_t same = 0;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int other = std::countr_zero(rest);
    if (requests[other]->value == requests[lane]->value) same |= std::uint64_t{1} << other;
  }
  return same;
}

std::uint32_t reduced(Operation operation, std::uint32_t a, std::uint32_t b) {
  const auto first = static_cast<std::int32_t>(a), second = static_cast<std::int32_t>(b);
  switch (operation) {
    case Operation::reduce_add:
      return a + b;
    case Operation::reduce_min:
      return static_cast<std::uint32_t>(std::min(first, second));
    case Operation::reduce_max:
      return static_cast<std::uint32_t>(std::max(first, second));
    default:
      return a | b;
  }
}

// Computes the result of operations that give all lanes the same.
std::uint64_t common(const Request* const (&requests)[32], std::uint32_t lanes) {
  const Operation operation = requests[std::countr_zero(lanes)]->operation;
  std::uint32_t votes = 0;
  std::uint32_t sum = static_cast<std::uint32_t>(requests[std::countr_zero(lanes)]->value);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const auto value = static_cast<std::uint32_t>(requests[lane]->value);
    if (value != 0) votes |= std::uint32_t{1} << lane;
    if (rest != lanes) sum = reduced(operation, sum, value);
  }
  switch (operation) {
    case Operation::sync:
      return 0;
    case Operation::ballot:
      return votes;
    case Operation::any:
      return votes != 0;
    case Operation::all:
      return votes == lanes;
    default:
      return sum;
  }
}

}  // namespace

const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {
      "__syncwarp",        "__shfl_sync",       "__shfl_up_sync",   "__shfl_down_sync", "__shfl_xor_sync",
      "__ballot_sync",     "__any_sync",        "__all_sync",       "__match_any_sync", "__reduce_add_sync",
      "__reduce_min_sync", "__reduce_max_sync", "__reduce_or_sync",
  };
  return kNames[static_cast<int>(operation)];
}

void complete(const Request* const (&requests)[32], std::uint32_t lanes, std::uint64_t (&results)[32]) {
  const Operation operation = requests[std::countr_zero(lanes)]->operation;
  const bool same = operation == Operation::sync || operation >= Operation::reduce_add ||
                    (operation >= Operation::ballot && operation <= Operation::all);
  const std::uint64_t shared = same ? common(requests, lanes) : 0;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    if (same) {
      results[lane] = shared;
    } else if (operation == Operation::match_any) {
      results[lane] = matching(requests, lanes, lane);
    } else {
      results[lane] = shuffled(requests, lanes, lane);
    }
  }
}

}  // namespace lumigrad::emulation
