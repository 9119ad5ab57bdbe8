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
  int64_t bytes;
};

// Rows as float32. If `sh` is null, harmonics are not unpacked.
struct UnpackedRows {
  float *means, *quats, *scales, *opacities;
  float* sh;
  int coefficients;  // Per channel.
};

// Writes the rows of all blocks in order, from row `begin` on, without helper threads: threads that gather rows must
// not wait for the loops of a device's thread, which may take seconds.
using UnpackRows = void (*)(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to);

UnpackRows cpu_unpack(Isa isa);

// Writes the words of rows, [count, row_words], and the three factors of their steps.
using PackWords = void (*)(const UnpackedRows& from, int64_t count, int64_t row_words, uint32_t* words, float* factors);

PackWords cpu_pack_words(Isa isa);

}  // namespace lumigrad::gaussians
