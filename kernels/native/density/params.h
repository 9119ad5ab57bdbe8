// Arguments of density control for one call: plain structs, the same for CPU and CUDA. Pointers are to the device's
// memory. Rows are primitives in training, with parameters before their activations: logarithms of scales and logits
// of opacities for Gaussians, radii and opacities themselves for spheres.
#pragma once

#include <cstdint>

namespace lumigrad::density {

// The rows of a chunk, for which counts are kept; a block of threads on CUDA.
inline constexpr int kChunk = 1024;

constexpr int64_t chunks_of(int64_t count) { return (count + kChunk - 1) / kChunk; }

// The uses of random numbers; different streams are independent.
enum Stream : uint32_t {
  kFreeStream,
  kNoiseStream,
  kFirstChildStream,
  kSecondChildStream,
  kRelocateStream,
  kAddStream
};

// Selects the random numbers of a call: row i of `stream` always gets the same four words.
struct Draw {
  uint64_t seed, step;
  uint32_t stream;
};

// Gaussians' raw parameters; spheres have no quats and no logarithms.
struct Gaussians {
  int32_t count;
  float* means;            // [N, 3]
  const float* quats;      // [N, 4] w, x, y, z of any length
  const float* scales;     // [N, 3] logarithms
  const float* opacities;  // [N] logits
};

// Observations of N rows in the views of a step: for Gaussians, gradients of the projected means (pixels) and radii;
// for spheres, gradients of the positions and the number of pixels to which they contributed.
struct Observed {
  int32_t views, count;
  int32_t axes;           // 2 on the film, 3 in space
  const float* gradient;  // [V, N, axes]
  const int32_t* seen;    // [V, N, 2] radii, or [V, N] pixels; a row is visible if all are above 0
  float scale[3];         // Factor of each axis.
  float inverse_extent;   // Factor from radii to fractions of the film.
};

// Sums over steps, by row.
struct Statistics {
  float* gradient;  // Sums of the gradients' lengths.
  int32_t* views;   // Views in which the row was visible.
  float* radii;     // The largest radius, as a fraction of the film.
};

// Rows that may be cloned, split or pruned, with raw parameters.
struct Candidates {
  int32_t count;
  int32_t axes;            // Number of sizes per row; the largest counts.
  const float* sizes;      // [N, axes]
  const float* opacities;  // Null if the rows have none.
  Statistics statistics;
};

// Limits of raw values; infinite means no limit.
struct Limits {
  float gradient;                      // Rows above, on average over the views, are cloned or split.
  float clone_size;                    // Growing rows up to this size are cloned, larger ones split.
  float split_radius;                  // Rows above are always split.
  float prune_opacity, child_opacity;  // Rows below are pruned; child_opacity applies to rows that would be split.
  float prune_size, child_size;        // Rows above are pruned; child_size applies to rows that would be split.
  float prune_radius;                  // Rows above are pruned, whether they would be split or not.
};

// The fate of a row.
enum Fate : uint8_t { kGone, kKept, kCloned, kSplit };
// The number of lists of rows: rows that stay, cloned rows (again), split rows.
inline constexpr int kGroups = 3;

// The copied rows of a tensor; if `fresh`, for moments, new rows are 0.
struct Column {
  const float* from;
  float* to;
  int32_t width;
  bool fresh;
};

// Rows of the next generation: row i is a copy of row sources[i], new from row `kept` on.
struct Generation {
  int32_t count, kept;
  const int32_t* sources;
};

// Children of split rows: `count` first children from row `first` of the next generation on, followed by the second
// children. All are already copies of their parents.
struct Children {
  int32_t first, count;
  const int32_t* sources;
  bool revise_opacity;   // Whether two children become as opaque as their parent was (Gaussians).
  const float* quats;    // Rotations of the previous generation; null for spheres.
  float *means, *sizes;  // The next generation: [., 3]; [., 3], for spheres [.].
  float* opacities;
};

// Weights of rows, and the rows without a weight.
struct Weights {
  uint64_t* sums;           // [N + 1] sums of the weights of earlier rows
  int32_t* excluded;        // [N], of which the first excluded_count[0] are defined
  int32_t* excluded_count;  // [1]
};

// Rows drawn with these weights.
struct Sample {
  int32_t count, draws;
  const uint64_t* sums;  // [count + 1]
  int32_t* rows;         // [draws]
  int32_t* shares;       // [count]; the number of times that each row is drawn is added
};

// Gaussians of each of which there will be 1 + shares[i].
struct Shared {
  int32_t count;
  const int32_t* shares;  // [N]
  float* opacities;       // [N] logits
  float* scales;          // [N, 3] logarithms
  float low, high;        // Limits of the new logits.
};

// Row targets[i] becomes a copy of row sources[i] of the same tensor; no row is both.
struct Moves {
  int32_t count;
  const int32_t *sources, *targets;
};

}  // namespace lumigrad::density
