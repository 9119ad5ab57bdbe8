// Steps of Adam: blocks of whole rows are first checked for non-finite gradients, then updated.
#include <cmath>

#include "common/cpu/pack.h"
#include "common/pool.h"
#include "common/threads.h"
#include "training/cpu/engine.h"
#include "training/cpu/lanes.h"
#include "training/math/adam.h"

LG_BEGIN_ENGINE(training)

namespace {

// The numbers in a block, which stays in the first-level cache between check and step.
constexpr int64_t kBlock = 1024;

int64_t rows_of_block(const AdamGroup& group) { return group.width < kBlock ? kBlock / group.width : 1; }

int64_t blocks_of(const AdamGroup& group) {
  const int64_t rows = rows_of_block(group);
  return (group.count + rows - 1) / rows;
}

template <Real kType>
LG_INLINE Pack load_gradient(const void* from, int64_t at, int lanes) {
  if constexpr (kType == Real::float16) return load_float16(static_cast<const uint16_t*>(from) + at, lanes);
  if constexpr (kType == Real::bfloat16) return load_bfloat16(static_cast<const uint16_t*>(from) + at, lanes);
  return load_lanes(static_cast<const float*>(from) + at, lanes);
}

struct BlockSums {
  double squares = 0.0;
  float largest = 0.0f;
  int64_t not_finite = 0;
};

// Numbers [begin, end) of a group; only those set in `mask` are stepped. `mask` is indexed from begin, and may be read
// up to a whole pack.
struct Range {
  int64_t begin, end;
  const uint8_t* mask;
};

template <Real kType, Activation kActivation>
class Loop {
 public:
  // `step_sizes`: see write_step_sizes.
  Loop(const AdamGroup& group, const AdamSettings& settings, const float* step_sizes)
      : group_(group), settings_(settings), step_sizes_(step_sizes) {}

  BlockSums look(const Range& range) const {
    LaneSums squares;
    Pack largest(0.0f);
    each_pack(range, [&](int64_t at, int lanes) {
      Pack gradient = load(at, lanes);
      if (range.mask != nullptr) gradient = zero_unless(takes_part(range, at, lanes), gradient);
      squares.add_product(gradient, gradient);
      largest = max(abs(gradient), largest);
    });
    BlockSums sums;
    sums.squares = squares.total();
    for (int i = 0; i < kLanes; ++i) sums.largest = max(lane(largest, i), sums.largest);
    // The sum of squares of finite floats is a finite double.
    if (!std::isfinite(sums.squares)) sums.not_finite = count_not_finite(range);
    return sums;
  }

  void step(const Range& range) const {
    int64_t column = group_.head == 0 ? 0 : range.begin % group_.width;
    each_pack(range, [&](int64_t at, int lanes) {
      const Pack gradient = load(at, lanes);
      const Pack old_raw = load_lanes(group_.raw + at, lanes), old_first = load_lanes(group_.first + at, lanes),
                 old_second = load_lanes(group_.second + at, lanes);
      Pack raw = old_raw, first = old_first, second = old_second;
      adam_update(settings_, step_size(column), gradient, raw, first, second);
      if (range.mask != nullptr) {
        const MaskPack part = takes_part(range, at, lanes);
        raw = select(part, raw, old_raw);
        first = select(part, first, old_first);
        second = select(part, second, old_second);
      }
      store_lanes(raw, group_.raw + at, lanes);
      store_lanes(first, group_.first + at, lanes);
      store_lanes(second, group_.second + at, lanes);
      if (group_.value != nullptr) store_value(range, activate<kActivation>(raw), at, lanes);
      if (group_.head != 0) column = (column + kLanes) % group_.width;
    });
  }

 private:
  int64_t count_not_finite(const Range& range) const {
    int64_t count = 0;
    each_pack(range, [&](int64_t at, int lanes) {
      const MaskPack bad = takes_part(range, at, lanes) & ~is_finite(load(at, lanes));
      count += __builtin_popcount(to_bits(bad));
    });
    return count;
  }

  template <class Body>
  LG_INLINE static void each_pack(const Range& range, const Body& body) {
    int64_t at = range.begin;
    for (; at + kLanes <= range.end; at += kLanes) body(at, kLanes);
    if (at < range.end) body(at, static_cast<int>(range.end - at));
  }

  LG_INLINE static MaskPack takes_part(const Range& range, int64_t at, int lanes) {
    if (range.mask == nullptr) return first_lanes(lanes);
    return load_mask(range.mask + (at - range.begin)) & first_lanes(lanes);
  }

  LG_INLINE Pack step_size(int64_t column) const {
    return group_.head == 0 ? Pack(group_.step_size) : load_unaligned(step_sizes_ + column);
  }

  LG_INLINE Pack load(int64_t at, int lanes) const {
    const Pack gradient = load_gradient<kType>(group_.gradient, at, lanes) * Pack(settings_.gradient_scale);
    if constexpr (kActivation == Activation::identity) return gradient;
    return raw_gradient<kActivation>(gradient, load_lanes(group_.raw + at, lanes));
  }

  LG_INLINE void store_value(const Range& range, Pack value, int64_t at, int lanes) const {
    float* to = group_.value + at;
    if (range.mask != nullptr) value = select(takes_part(range, at, lanes), value, load_lanes(to, lanes));
    store_lanes(value, to, lanes);
  }

  const AdamGroup& group_;
  const AdamSettings& settings_;
  // Step sizes of rows with a head, by column, padded so that a whole pack can be read from any column.
  const float* step_sizes_;
};

// Writes 1 for each number of the selected rows in [begin, end); returns the number of selected rows.
int64_t mark_seen(const AdamGroup& group, int64_t begin, int64_t end, uint8_t* mask) {
  int64_t count = 0;
  for (int64_t row = begin; row < end; ++row) {
    const uint8_t seen = group.rows == nullptr || group.rows[row] != 0 ? 1 : 0;
    count += seen;
    for (int k = 0; k < group.width; ++k) *mask++ = seen;
  }
  return count;
}

// Removes rows with non-finite gradients from the mask; returns their number.
template <class L>
int64_t take_out_bad(const L& loop, const AdamGroup& group, int64_t begin, int64_t end, uint8_t* mask) {
  int64_t count = 0;
  for (int64_t row = begin; row < end; ++row, mask += group.width) {
    const bool bad = mask[0] != 0 && loop.look({row * group.width, (row + 1) * group.width, nullptr}).not_finite > 0;
    if (bad) memset(mask, 0, group.width);
    count += bad ? 1 : 0;
  }
  return count;
}

// For rows of at least this many numbers, skipping unselected rows saves memory traffic.
constexpr int kWideRow = 2 * kLanes;

// Calls body(range) for the selected part of a block: for runs of rows if rows are wide, else for the block with its
// mask.
template <class Body>
void each_run(const AdamGroup& group, const Range& block, const Body& body) {
  if (block.mask == nullptr || group.width < kWideRow) return body(block);
  int64_t at = block.begin;
  while (at < block.end) {
    const int64_t begin = at;
    while (at < block.end && block.mask[at - block.begin] != 0) at += group.width;
    if (at > begin) body(Range{begin, at, nullptr});
    while (at < block.end && block.mask[at - block.begin] == 0) at += group.width;
  }
}

template <class L>
BlockSums look(const L& loop, const AdamGroup& group, const Range& block) {
  BlockSums found;
  each_run(group, block, [&](const Range& range) {
    const BlockSums part = loop.look(range);
    found.squares += part.squares;
    found.largest = max(part.largest, found.largest);
    found.not_finite += part.not_finite;
  });
  return found;
}

// A block of whole rows, with the results of its check.
struct Block {
  int64_t begin, end;  // Rows.
  Range numbers;
  int64_t updated;
};

// Removes rows with non-finite gradients from the block. A single row may be too wide for `mask`; then the block
// becomes empty instead.
template <class L>
BlockSums leave_out_bad(const L& loop, const AdamGroup& group, Block& block, uint8_t* mask, double* sums) {
  const bool alone = block.end - block.begin == 1;
  if (!alone && block.numbers.mask == nullptr) mark_seen(group, block.begin, block.end, mask);
  const int64_t bad = alone ? 1 : take_out_bad(loop, group, block.begin, block.end, mask);
  block.updated -= bad;
  block.numbers.mask = mask;
  sums[kSkipped] = static_cast<double>(bad);
  return alone ? BlockSums() : look(loop, group, block.numbers);
}

// `sums` must be zero before.
template <Real kType, Activation kActivation>
void step_block(const AdamGroup& group, const AdamSettings& settings, const float* step_sizes, int64_t number,
                double* sums) {
  const int64_t rows = rows_of_block(group), begin = number * rows;
  const int64_t end = begin + rows < group.count ? begin + rows : group.count;
  const Loop<kType, kActivation> loop(group, settings, step_sizes);
  Block block = {begin, end, {begin * group.width, end * group.width, nullptr}, end - begin};
  alignas(64) uint8_t mask[kBlock + kLanes];
  if (group.rows != nullptr && memchr(group.rows + begin, 0, end - begin) != nullptr) {
    if (end - begin == 1) return;
    block.updated = mark_seen(group, begin, end, mask);
    block.numbers.mask = mask;
  }
  BlockSums found = look(loop, group, block.numbers);
  if (found.not_finite > 0) {
    sums[kNotFinite] = static_cast<double>(found.not_finite);
    found = leave_out_bad(loop, group, block, mask, sums);
  }
  if (block.updated == 0) return;
  sums[kSquares] = found.squares;
  sums[kLargest] = found.largest;
  sums[kUpdated] = static_cast<double>(block.updated);
  each_run(group, block.numbers, [&](const Range& range) { loop.step(range); });
}

using StepBlock = void (*)(const AdamGroup&, const AdamSettings&, const float*, int64_t, double*);

template <Real kType>
StepBlock step_of(Activation activation) {
  if (activation == Activation::exp) return &step_block<kType, Activation::exp>;
  if (activation == Activation::sigmoid) return &step_block<kType, Activation::sigmoid>;
  return &step_block<kType, Activation::identity>;
}

StepBlock step_of(const AdamGroup& group) {
  if (group.gradient_type == Real::float16) return step_of<Real::float16>(group.activation);
  if (group.gradient_type == Real::bfloat16) return step_of<Real::bfloat16>(group.activation);
  return step_of<Real::float32>(group.activation);
}

void add_block(const double* of_block, double* sums) {
  for (int i = 0; i < kAdamSums; ++i) {
    sums[i] = i == kLargest ? (of_block[i] > sums[i] ? of_block[i] : sums[i]) : sums[i] + of_block[i];
  }
}

int64_t step_sizes_of(const AdamGroup& group) { return group.head > 0 ? group.width + kLanes : 0; }

// Writes the step sizes of a row's numbers, padded for a pack, unless they are all the same.
void write_step_sizes(const AdamGroup& group, float* to) {
  for (int64_t i = 0; i < step_sizes_of(group); ++i) {
    to[i] = i % group.width < group.head ? group.head_step_size : group.step_size;
  }
}

}  // namespace

void adam(const AdamGroup* groups, int count, const AdamSettings& settings, double* sums, Workspace& w) {
  StageClock clock(w.milliseconds);
  // All memory is allocated before anything changes.
  int64_t* first = w.numbers.ensure<int64_t>(2 * (count + 1));
  int64_t* sizes = first + count + 1;
  first[0] = sizes[0] = 0;
  for (int i = 0; i < count; ++i) {
    first[i + 1] = first[i] + blocks_of(groups[i]);
    sizes[i + 1] = sizes[i] + step_sizes_of(groups[i]);
  }
  double* parts = w.sums.ensure<double>(first[count] * kAdamSums);
  float* step_sizes = w.scratch.ensure<float>(sizes[count]);
  for (int i = 0; i < count; ++i) write_step_sizes(groups[i], step_sizes + sizes[i]);
  memset(parts, 0, first[count] * kAdamSums * sizeof(double));
  for_parts(static_cast<int>(first[count]), [&](int part) {
    int i = 0;
    while (part >= first[i + 1]) ++i;
    step_of(groups[i])(groups[i], settings, step_sizes + sizes[i], part - first[i], parts + int64_t{part} * kAdamSums);
  });
  // Blocks are summed in order, so that sums are independent of the number of threads.
  memset(sums, 0, count * kAdamSums * sizeof(double));
  for (int i = 0; i < count; ++i) {
    for (int64_t b = first[i]; b < first[i + 1]; ++b) add_block(parts + b * kAdamSums, sums + i * kAdamSums);
  }
  clock.stage(0);
}

LG_END
