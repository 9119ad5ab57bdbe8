// What a point knows of one obstacle. N is float or a pack.
#pragma once

#include "meshes/math_vector.h"

LG_BEGIN_ENGINE(meshes)

// A signed distance, positive outside, and its derivative by the point.
template <class N>
struct Distance {
  N value;
  Vec<N> gradient;
};

LG_END
