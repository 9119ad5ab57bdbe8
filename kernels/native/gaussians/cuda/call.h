// The arguments of a call on the device: views, poses and slices.
#pragma once

#include "gaussians/cuda/engine.h"
#include "gaussians/math/sensor/slice_motion.h"

namespace lumigrad::gaussians {

inline constexpr unsigned kGaussianThreads = 128;

// Passed to kernels by value. Blocks of kGaussianThreads threads process a scene's Gaussians, one per thread; every
// block lies in one slice, whose pose it reads once.
struct CudaCall {
  Settings settings;
  Scene scene;  // Its slices and poses, like the arrays below, are in the device's memory.
  int views, width, height;
  const View* view;                   // [views]
  const int32_t* lenses;              // [views] the Lens of each view
  const int32_t* scene_starts;        // [scenes + 1] into `scene_views`
  const int32_t* scene_views;         // [views] the views of each scene, scene after scene
  const int32_t* slice_blocks;        // [slices + 1] blocks before each slice
  int blocks;                         // Per scene.
  const SliceMotion<float>* motions;  // Along rays: [views, moving slices]
};

// Owns the memory that CudaCall points to, and lists the lenses in use.
class CudaCallData {
 public:
  CudaCallData(const View* views, int count, const Settings& settings, const Scene& scene, CudaWorkspace& workspace,
               cudaStream_t stream);

  const CudaCall& call() const { return call_; }
  bool has(Lens lens) const { return (lenses_ >> static_cast<int>(lens) & 1u) != 0; }
  bool has_only(Lens lens) const { return lenses_ == 1u << static_cast<int>(lens); }
  bool has(SensorLens lens) const { return (sensor_lenses_ >> static_cast<int>(lens) & 1u) != 0; }

 private:
  CudaCall call_{};
  unsigned lenses_ = 0, sensor_lenses_ = 0;  // Sets of lenses, as bits; one of the sets is empty.
  DeviceBuffer<unsigned char> data_;
};

inline constexpr Lens kLenses[] = {Lens::pinhole, Lens::distorted, Lens::orthographic, Lens::fisheye};
inline constexpr SensorLens kSensorLenses[] = {SensorLens::pinhole, SensorLens::opencv, SensorLens::orthographic,
                                               SensorLens::fisheye, SensorLens::ftheta, SensorLens::lidar};

}  // namespace lumigrad::gaussians
