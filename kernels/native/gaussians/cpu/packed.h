// Contiguous blocks of rows of Gaussians: packed as kernels/gaussians/packed_rows.py describes, or float32, with all
// means, then all quaternions, scales, opacities and harmonics.
#pragma once

#include <cstdint>
#include <vector>

#include "common/isa.h"

namespace lumigrad::gaussians {

struct RowBlock {
  const uint8_t* packed;
  const float* values;  // For blocks that are not packed.
  int64_t count;
};

// The destination of rows, float32. If `sh` is null, harmonics are left out.
struct UnpackedRows {
  float *means, *quats, *scales, *opacities;
  float* sh;
  int coefficients;  // Per channel.
};

// Writes the rows of all blocks in order, from row `begin` on, without helper threads: threads that gather rows must
// not wait for the loops of a device's thread, which may take seconds.
using UnpackRows = void (*)(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to);

UnpackRows cpu_unpack(Isa isa);

}  // namespace lumigrad::gaussians
