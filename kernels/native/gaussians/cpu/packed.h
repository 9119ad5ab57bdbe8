// Blocks of rows of Gaussians in one piece each: packed as kernels/gaussians/packed_rows.py describes, or float32, with
// all means, then all quaternions, scales, opacities and harmonics.
#pragma once

#include <cstdint>
#include <vector>

#include "common/isa.h"

namespace lumigrad::gaussians {

struct RowBlock {
  const uint8_t* packed;
  const float* values;  // Of blocks that are not packed.
  int64_t count;
};

// Destination of rows, float32. `sh` may be null: harmonics are then left out.
struct UnpackedRows {
  float *means, *quats, *scales, *opacities;
  float* sh;
  int coefficients;  // Per channel.
};

// Writes the rows of all blocks in their order, from row `begin` on, without helpers: threads that gather rows must not
// wait for the loops of a device's thread, which may take seconds.
using UnpackRows = void (*)(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to);

UnpackRows cpu_unpack(Isa isa);

}  // namespace lumigrad::gaussians
