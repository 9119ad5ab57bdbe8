// Packing and unpacking of blocks of rows on the CPU.
#pragma once

#include <vector>

#include "common/isa.h"
#include "gaussians/packed.h"

namespace lumigrad::gaussians {

// Writes the rows of all blocks in order, from row `begin` on, without helper threads: threads that gather rows must
// not wait for the loops of a device's thread, which may take seconds.
using UnpackRows = void (*)(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to);

UnpackRows cpu_unpack(Isa isa);

// Writes the words of rows, [count, row_words], and the three factors of their steps.
using PackWords = void (*)(const UnpackedRows& from, int64_t count, int64_t row_words, uint32_t* words, float* factors);

PackWords cpu_pack_words(Isa isa);

}  // namespace lumigrad::gaussians
