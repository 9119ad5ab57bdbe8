// Rows of sums per pair of a tile and an item, for deterministic sums.
#pragma once

#include "common/cuda/tiles.h"

namespace lumigrad {

// rows[item] [items, width] becomes the sum of the rows of its pairs [pairs, width], in the order of the lists.
// `pair_items` are the items of the listed pairs.
void sum_pair_rows(const unsigned* pair_items, std::size_t pairs, std::size_t items, int width, const float* pair_rows,
                   float* rows, cudaStream_t stream);

}  // namespace lumigrad
