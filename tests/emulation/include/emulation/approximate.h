// Instructions that hardware computes approximately. With a seed their results are off by up to 2 units in the last
// place, so that tests see what they may change on a device.
#pragma once

#include <cstdint>

namespace lumigrad::emulation {

// 0: results are as exact as the host's.
void set_error_seed(std::uint32_t seed);
// `exact`, moved by a number of units that depends on its bits and the seed.
float approximated(float exact);
// As instructions with .ftz read and write numbers: denormal ones are zero. Without a seed `value`.
float flushed(float value);

}  // namespace lumigrad::emulation
