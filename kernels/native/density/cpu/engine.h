// Density control on the CPU: the interface that each instruction set implements.
#pragma once

#include "common/isa.h"
#include "density/params.h"

namespace lumigrad::density {

struct CpuEngine {
  // Writes word k of row first + i to words[4 i + k].
  void (*random_words)(const Draw&, uint32_t first, int64_t count, uint32_t* words);
  // Writes the same words as normals to values[4 i + k].
  void (*normals)(const Draw&, uint32_t first, int64_t count, float* values);
  // means += strength * gate(opacity) * covariance * normal
  void (*add_noise)(const Gaussians&, const Draw&, float strength);
  // Adds the observations of a step.
  void (*accumulate)(const Observed&, const Statistics&);
  // Decides the fate of each row, and counts: starts[g * chunks + c] is the number of rows in the lists before group g,
  // and in group g of the chunks before c; one more entry holds the length of all three lists.
  void (*classify)(const Candidates&, const Limits&, Fate* fates, int32_t* starts);
  // Writes the three lists one after another, then the list of split rows again.
  void (*list_rows)(const Fate* fates, const int32_t* starts, int32_t count, int32_t* sources);
  void (*gather)(const Generation&, const Column* columns, int count);
  void (*split)(const Children&, const Draw& first, const Draw& second);
  // Rows whose logits are not above the minimum get no weight.
  void (*weigh)(const float* opacities, int32_t count, float minimum, const Weights&);
  void (*sample_rows)(const Sample&, const Draw&);
  // Adapts the rows with shares, and sets their columns to 0.
  void (*share_rows)(const Shared&, const Column* columns, int count);
  void (*move_rows)(const Moves&, const Column* columns, int count);
};

CpuEngine cpu_engine(Isa isa);

}  // namespace lumigrad::density
