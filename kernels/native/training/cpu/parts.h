// Sums of many numbers by several threads, in an order that is independent of the number of threads.
#pragma once

#include <algorithm>

#include "common/threads.h"
#include "training/cpu/engine.h"

LG_BEGIN_ENGINE(training)

// Calls body(begin, end) for parts of `count` numbers, and sums the results in the order of the parts.
template <class Body>
double sum_parts(int64_t count, Workspace& w, const Body& body) {
  const auto parts = static_cast<int>((count + kSummed - 1) / kSummed);
  double* sums = w.sums.ensure<double>(parts + 1);
  for_parts(parts, [&](int part) {
    const int64_t begin = int64_t{part} * kSummed;
    sums[part] = body(begin, std::min(begin + kSummed, count));
  });
  double total = 0.0;
  for (int part = 0; part < parts; ++part) total += sums[part];
  return total;
}

LG_END
