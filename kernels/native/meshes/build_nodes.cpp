// Boxes of boxes.
#include <algorithm>

#include "common/threads.h"
#include "meshes/build.h"
#include "meshes/build_partition.h"

namespace lumigrad::meshes {
namespace {

// The box around all children of a node.
void enclose(const float* children, float* low, float* high) {
  for (int k = 0; k < 3; ++k) {
    low[k] = *std::min_element(children + k * kWide, children + (k + 1) * kWide);
    high[k] = *std::max_element(children + (3 + k) * kWide, children + (4 + k) * kWide);
  }
}

}  // namespace

void fit_nodes(Leaves& leaves) {
  const Levels& shape = leaves.shape;
  const auto box_of = [&](int level, int32_t node) {
    return leaves.boxes.data() + static_cast<int64_t>(shape.level_begin[level] + node) * kBoxFloats * kWide;
  };
  for (int level = 1; level < shape.levels; ++level) {
    const int32_t below = shape.nodes_of(level - 1), slots = shape.nodes_of(level) * kWide;
    const int parts = parts_for(slots);
    for_parts(parts, [&](int p) {
      for (int64_t child = static_cast<int64_t>(slots) * p / parts;
           child < static_cast<int64_t>(slots) * (p + 1) / parts; ++child) {
        float low[3] = {kFar, kFar, kFar}, high[3] = {-kFar, -kFar, -kFar};
        if (child < below) enclose(box_of(level - 1, static_cast<int32_t>(child)), low, high);
        float* box = box_of(level, static_cast<int32_t>(child / kWide)) + child % kWide;
        for (int k = 0; k < 3; ++k) {
          box[k * kWide] = low[k];
          box[(3 + k) * kWide] = high[k];
        }
      }
    });
  }
  enclose(box_of(shape.levels - 1, 0), leaves.low, leaves.high);
}

}  // namespace lumigrad::meshes
