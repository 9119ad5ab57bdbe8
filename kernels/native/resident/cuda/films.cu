// The intrinsics of one view or calibration at a time: a few numbers, for which one thread is enough.
#include "common/cuda/launch.h"
#include "resident/cuda/films.h"
#include "training/math/adam.h"

namespace lumigrad::resident {
namespace {

__global__ void __launch_bounds__(1)
    draw_film_kernel(const double* own, const float* offsets, int width, int height, bool clamps, gaussians::Film* to) {
  *to = drawn_film(own, offsets, width, height, clamps);
}

__global__ void __launch_bounds__(1)
    film_gradient_kernel(const double* sums, const double* own, const float* offsets, bool adds, float* gradient) {
  film_gradient(sums, own, offsets, adds, gradient);
}

__global__ void __launch_bounds__(1)
    step_calibration_kernel(Adam adam, double rate, Calibration from, NextCalibration* next) {
  begin_step(from, next);
  const auto done = static_cast<std::uint64_t>(*from.steps);
  const training::AdamSettings settings = adam.settings(done);
  const float step_size = adam.step_size(rate, done);
  for (int i = 0; i < kFilm; ++i) {
    if (!training::is_finite(next->gradient[i])) return;
  }
  for (int i = 0; i < kFilm; ++i) {
    training::adam_update(settings, step_size, next->gradient[i], next->values[i], next->first[i], next->second[i]);
  }
}

__global__ void __launch_bounds__(1) check_film_kernel(const double* own, NextCalibration* next) {
  check_film(own, next);
}

__global__ void __launch_bounds__(1) keep_calibration_kernel(const NextCalibration* next, Calibration to) {
  end_step(*next, to);
}

}  // namespace

void cuda_draw_film(const double* own, const float* offsets, const gaussians::View& view, gaussians::Film* to,
                    cudaStream_t stream) {
  const bool clamps = view.model == gaussians::Model::pinhole;
  launch(draw_film_kernel, 1, 1, 0, stream, own, offsets, view.width, view.height, clamps, to);
}

void cuda_film_gradient(const double* sums, const double* own, const float* offsets, bool adds, float* gradient,
                        cudaStream_t stream) {
  launch(film_gradient_kernel, 1, 1, 0, stream, sums, own, offsets, adds, gradient);
}

void cuda_step_calibration(const Adam& adam, double rate, const Calibration& from, NextCalibration* next,
                           cudaStream_t stream) {
  launch(step_calibration_kernel, 1, 1, 0, stream, adam, rate, from, next);
}

void cuda_check_film(const double* own, NextCalibration* next, cudaStream_t stream) {
  launch(check_film_kernel, 1, 1, 0, stream, own, next);
}

void cuda_keep_calibration(const NextCalibration* next, const Calibration& to, cudaStream_t stream) {
  launch(keep_calibration_kernel, 1, 1, 0, stream, next, to);
}

}  // namespace lumigrad::resident
