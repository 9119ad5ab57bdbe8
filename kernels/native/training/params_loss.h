// What losses of images work on; plain data that is also passed to CUDA kernels.
#pragma once

#include <cstdint>

namespace lumigrad::training {

// Numbers in memory: float32, or bytes. What a byte means is said where it is read.
struct Plane {
  const void* data;  // Null: there is none.
  bool bytes;
};

// Pointers are to the machine that computes the loss.
struct ImageLoss {
  const float* image;  // [views, height, width, channels]
  Plane target;        // The same; bytes are 255ths.
  Plane mask;          // [views, height, width]; bytes count if they are not 0.
  float* gradient;     // As the image.
  int32_t views, height, width, channels;
  float l1, l2, dssim;  // Weights.
  bool valid;           // Windows lie within the image.
  double view_weight;   // Of each view in the loss.
};

// What a loss tells of each view; float64. Means are 0 where nothing counts.
enum LossValue { kWeight, kL1, kL2, kDssim, kLossValues };

}  // namespace lumigrad::training
