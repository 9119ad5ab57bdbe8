// What a pixel blends.
#pragma once

#include "gaussians/params.h"

namespace lumigrad::gaussians {

// The channels, then depth and inverse depth where they are asked for.
struct Features {
  int colors = 0;
  bool depth = false, inverse_depth = false;
  constexpr int total() const { return colors + depth + inverse_depth; }
};

inline Features features_of(const Scene& scene, const Outputs& outputs) {
  return {outputs.color != nullptr ? scene.channels : 0, outputs.depth != nullptr || outputs.expected_depth != nullptr,
          outputs.inverse_depth != nullptr};
}

}  // namespace lumigrad::gaussians
