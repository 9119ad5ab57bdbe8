// The rectangle of pixels that a primitive may overlap.
#pragma once

#include <cstdint>

#include "common/math/number.h"

LG_BEGIN

// [x0, x1) x [y0, y1); empty: x0 == x1 or y0 == y1.
struct PixelRectangle {
  uint16_t x0, x1, y0, y1;
};

LG_END
