// Sums over rows: means of values, and the number of touched rows.
#include "common/math/number.h"
#include "training/cpu/parts.h"

LG_BEGIN_ENGINE(training)
namespace {

constexpr int kSums =
    8;  // Parallel running sums, so that the compiler can use packs; a fixed number, for fixed results.

double sum_of(const float* values, int64_t begin, int64_t end) {
  double sums[kSums] = {};
  int64_t i = begin;
  for (; i + kSums <= end; i += kSums) {
    for (int k = 0; k < kSums; ++k) sums[k] += static_cast<double>(values[i + k]);
  }
  for (int k = 0; i < end; ++i, ++k) sums[k] += static_cast<double>(values[i]);
  double total = 0.0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace

void mean(const Mean& values, double* to, Workspace& w) {
  StageClock clock(w.milliseconds);
  const double sum = sum_parts(values.count, w, [&](int64_t begin, int64_t end) {
    if (values.gradient != nullptr) {
      for (int64_t i = begin; i < end; ++i) values.gradient[i] += values.slope;
    }
    return sum_of(values.values, begin, end);
  });
  *to = sum / static_cast<double>(values.count);
  clock.stage(0);
}

void count_touched(const int32_t* touched, int64_t count, uint8_t* rows, double* to, Workspace& w) {
  *to = sum_parts(count, w, [&](int64_t begin, int64_t end) {
    int64_t found = 0;
    for (int64_t i = begin; i < end; ++i) found += touched[i] != 0;
    if (rows != nullptr) {
      for (int64_t i = begin; i < end; ++i) rows[i] = touched[i] != 0;
    }
    return static_cast<double>(found);
  });
}

LG_END
