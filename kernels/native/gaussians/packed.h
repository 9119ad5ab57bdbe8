// Contiguous blocks of rows of Gaussians: packed as kernels/gaussians/packed_rows.py describes, or float32, with all
// means, then all quaternions, scales, opacities and harmonics.
#pragma once

#include <cstdint>

namespace lumigrad::gaussians {

struct RowBlock {
  const uint8_t* packed;
  const float* values;  // For blocks that are not packed.
  int64_t count;
  int64_t bytes;
};

// Rows as float32. If `sh` is null, harmonics are not unpacked.
struct UnpackedRows {
  float *means, *quats, *scales, *opacities;
  float* sh;
  int coefficients;  // Per channel.
};

}  // namespace lumigrad::gaussians
