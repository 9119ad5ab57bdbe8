// Density control on a CUDA device: all work is queued on the caller's stream.
#pragma once

#include <cuda_runtime.h>

#include "density/params.h"

namespace lumigrad::density {

// These functions are like CpuEngine's of the same names.
void cuda_random_words(const Draw& draw, uint32_t first, int64_t count, uint32_t* words, cudaStream_t stream);
void cuda_normals(const Draw& draw, uint32_t first, int64_t count, float* values, cudaStream_t stream);
void cuda_add_noise(const Gaussians& g, const Draw& draw, float strength, cudaStream_t stream);
void cuda_accumulate(const Observed& observed, const Statistics& to, cudaStream_t stream);
void cuda_classify(const Candidates& rows, const Limits& limits, Fate* fates, int32_t* starts, cudaStream_t stream);
void cuda_list_rows(const Fate* fates, const int32_t* starts, int32_t count, int32_t* sources, cudaStream_t stream);
// Columns are in host memory.
void cuda_gather(const Generation& next, const Column* columns, int count, cudaStream_t stream);
void cuda_split(const Children& children, const Draw& first, const Draw& second, cudaStream_t stream);
void cuda_weigh(const float* opacities, int32_t count, float minimum, const Weights& to, cudaStream_t stream);
void cuda_sample_rows(const Sample& sample, const Draw& draw, cudaStream_t stream);
void cuda_share_rows(const Shared& shared, const Column* columns, int count, cudaStream_t stream);
void cuda_move_rows(const Moves& moves, const Column* columns, int count, cudaStream_t stream);

}  // namespace lumigrad::density
