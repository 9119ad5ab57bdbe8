// Instructions that hardware computes approximately. With a seed, their results are off by up to 2 units in the last
// place, so that tests see the effect that they may have on a device.
#pragma once

#include <cstdint>

namespace lumigrad::emulation {

// The seed 0 makes results as exact as the host's.
void set_error_seed(std::uint32_t seed);
// Moves `exact` by a number of units that depends on its bits and the seed.
float approximated(float exact);
// Flushes denormal numbers to zero, like instructions with .ftz; returns `value` without a seed.
float flushed(float value);

}  // namespace lumigrad::emulation
