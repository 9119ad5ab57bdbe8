// The conversion of images to levels: values from 0 to 1 as whole numbers from 0 to 255.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/isa.h"

namespace lumigrad {

// Rounds, ties to even; values outside are clamped, and NaN becomes 0. Throws Stopped like all loops.
void convert_levels(Isa isa, const float* values, std::size_t count, uint8_t* levels);

}  // namespace lumigrad
