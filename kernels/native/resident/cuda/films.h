// Intrinsics on a CUDA device, see resident/film.h.
#pragma once

#include <cuda_runtime.h>

#include "resident/film.h"

namespace lumigrad::resident {

void cuda_draw_film(const double* own, const float* offsets, const gaussians::View& view, gaussians::Film* to,
                    cudaStream_t stream);
void cuda_film_gradient(const double* sums, const double* own, const float* offsets, bool adds, float* gradient,
                        cudaStream_t stream);
void cuda_step_calibration(const Adam& adam, double rate, const Calibration& from, NextCalibration* next,
                           cudaStream_t stream);
void cuda_check_film(const double* own, NextCalibration* next, cudaStream_t stream);
void cuda_keep_calibration(const NextCalibration* next, const Calibration& to, cudaStream_t stream);

}  // namespace lumigrad::resident
