// Finds boxes that meet other boxes.
#include <algorithm>
#include <vector>

#include "common/pool.h"
#include "common/threads.h"
#include "meshes/build/partition.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {
namespace {

bool meet(const PartBox& a, const PartBox& b, double margin) {
  bool apart = false;
  for (int k = 0; k < 3; ++k) apart |= a.low[k] > b.high[k] + margin || b.low[k] > a.high[k] + margin;
  return !apart;
}

PartBox enclosing(const PartBox* boxes, int64_t count) {
  PartBox whole = boxes[0];
  for (int64_t i = 1; i < count; ++i) {
    for (int k = 0; k < 3; ++k) {
      whole.low[k] = std::min(whole.low[k], boxes[i].low[k]);
      whole.high[k] = std::max(whole.high[k], boxes[i].high[k]);
    }
  }
  return whole;
}

// A hierarchy in which each box encloses kFew consecutive boxes of the level below.
class Hierarchy {
 public:
  explicit Hierarchy(const std::vector<PartBox>& boxes) {
    Array<Centroid> order(boxes.size());
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      order[i].face = static_cast<int32_t>(i);
      for (int k = 0; k < 3; ++k) order[i].at[k] = static_cast<float>(boxes[i].low[k] + boxes[i].high[k]);
    }
    order_triangles(order.data(), static_cast<int64_t>(boxes.size()));
    for (const Centroid& at : order) numbers_.push_back(at.face);
    levels_.emplace_back();
    for (const int32_t number : numbers_) levels_[0].push_back(boxes[number]);
    while (levels_.back().size() > 1) {
      const std::vector<PartBox>& below = levels_.back();
      std::vector<PartBox> level;
      for (std::size_t i = 0; i < below.size(); i += kFew) {
        level.push_back(enclosing(below.data() + i, static_cast<int64_t>(std::min(kFew, below.size() - i))));
      }
      levels_.push_back(std::move(level));
    }
  }

  bool meets_another(int32_t number, const PartBox& box, double margin) const {
    return meets_within(levels_.size() - 1, 0, number, box, margin);
  }

 private:
  static constexpr std::size_t kFew = 8;

  bool meets_within(std::size_t level, std::size_t at, int32_t number, const PartBox& box, double margin) const {
    if (!meet(levels_[level][at], box, margin)) return false;
    if (level == 0) return numbers_[at] != number;
    const std::size_t end = std::min(levels_[level - 1].size(), (at + 1) * kFew);
    for (std::size_t child = at * kFew; child < end; ++child) {
      if (meets_within(level - 1, child, number, box, margin)) return true;
    }
    return false;
  }

  std::vector<int32_t> numbers_;
  std::vector<std::vector<PartBox>> levels_;
};

}  // namespace

std::vector<uint8_t> find_meeting(const std::vector<PartBox>& boxes, double margin) {
  std::vector<uint8_t> found(boxes.size(), 0);
  if (boxes.size() < 2) return found;
  const Hierarchy hierarchy(boxes);
  const auto count = static_cast<int64_t>(boxes.size());
  const int parts = parts_for(count, 256);
  for_parts(parts, [&](int p) {
    for (int64_t i = count * p / parts; i < count * (p + 1) / parts; ++i) {
      found[i] = hierarchy.meets_another(static_cast<int32_t>(i), boxes[i], margin);
    }
  });
  return found;
}

}  // namespace lumigrad::meshes
