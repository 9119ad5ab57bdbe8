// The numbers of a view that follow from its intrinsics.
#pragma once

#include <cstddef>

#include "gaussians/params.h"

namespace lumigrad::gaussians {

// Numbers laid out as in View.
struct Film {
  float fx, fy, cx, cy, min_u, max_u, min_v, max_v;
};
static_assert(offsetof(View, distorted) == offsetof(View, fx) + sizeof(Film));

}  // namespace lumigrad::gaussians
