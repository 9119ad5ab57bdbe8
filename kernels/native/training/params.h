// Arguments of steps of Adam and of image losses: plain structs that are also passed to CUDA kernels.
#pragma once

#include <cstdint>

namespace lumigrad::training {

// The activation from the optimised raw parameter to the rendered value.
enum class Activation : int32_t { identity, exp, sigmoid };

enum class Real : int32_t { float32, float16, bfloat16 };

// A parameter of `count` rows of `width` numbers each. Pointers are to the machine that runs the step.
struct AdamGroup {
  float* raw;
  const void* gradient;  // Gradient of the value, of type `gradient_type`; null if given by factors.
  const float* factors;  // Null, or on the device: a unit direction and three numbers per row. The gradient of a row
                         // [K, 3] is the harmonics of the direction up to `degree`, then 0, times these numbers.
  float* first;
  float* second;
  float* value;         // Null if not needed.
  const uint8_t* rows;  // The rows to step; null means all.
  int64_t count;
  int32_t width;
  Real gradient_type;
  Activation activation;
  float step_size;  // The learning rate divided by the bias correction of the first moment.
  int32_t head;     // The number of leading numbers of each row that have another step size.
  float head_step_size;
  int32_t degree;
};

struct AdamSettings {
  float first_weight;     // Weight of a new gradient in the first moment.
  float second_decay;     // Decay of the second moment.
  float second_weight;    // Weight of a new square in the second moment.
  float root_correction;  // Factor that corrects the bias of the second moment's root.
  float epsilon;
  float gradient_scale;
};

// Statistics of the gradients of a group, with respect to raw parameters; float64.
enum AdamSum { kSquares, kLargest, kNotFinite, kSkipped, kUpdated, kAdamSums };

// Types of numbers in memory: float32; bytes as 255ths; or bytes that count as 1 unless they are 0.
enum class Numbers : int32_t { floats, levels, flags };

struct Plane {
  const void* data;  // Null if there is none.
  Numbers numbers;
};

// Pointers are to the machine that computes the loss.
struct ImageLoss {
  const float* image;  // [views, height, width, channels]
  Plane target;        // [views, height, width, channels]
  Plane mask;          // [views, height, width]
  float* gradient;     // Gradient, laid out like the image.
  int32_t views, height, width, channels;
  float l1, l2, dssim;  // Weights.
  bool valid;           // Whether windows must lie within the image.
  double view_weight;   // Weight of each view in the loss.
};

// Values whose mean is a term of a loss.
struct Mean {
  const float* values;
  int64_t count;
  float* gradient;  // Gradient of the loss with respect to the values, to which `slope` is added; null if not needed.
  float slope;
};

// A rendered plane of a view, and its target.
struct PlaneLoss {
  const float* plane;
  Plane target;
  float* gradient;  // Shaped as the plane.
  int64_t pixels;
  bool known;    // Whether only pixels with a finite target above 0 count.
  float weight;  // Weight of the mean of all differences in the loss.
};

// The results of a plane for each view; float64.
enum PlaneValue { kCounted, kDifferences, kPlaneValues };

// The exposure of a view: the colours of its image become matrix[:, :3] @ colour + matrix[:, 3].
struct Exposure {
  const float* matrix;  // [3, 4]
  const float* image;   // [pixels, 3]
  float* exposed;       // [pixels, 3]; in the backward pass its gradient, which becomes the image's gradient.
  int64_t pixels;
};
inline constexpr int kExposure = 12;

// An image of depths along z [height, width] by a pinhole camera; the first pixel's centre is at 0.5.
struct Surface {
  const float* depth;
  int32_t height, width;
  float fx, fy, cx, cy;
  float rotation[9];  // World to camera.
};
// The number of sums for the gradients of a surface's normals with respect to the rotation and to fx, fy, cx and cy.
inline constexpr int kSurfaceSums = 13;

// Consistency of normals: the mean of alpha - normals . surface, of the pixels that have a surface.
struct NormalLoss {
  const float* alpha;    // [pixels], as its gradient; the others are [pixels, 3].
  const float* normals;  // Weighted sums of the normals of surfels.
  const float* surface;  // Unit normals of the surface, or 0 if there is none.
  float *d_alpha, *d_normals, *d_surface;
  int64_t pixels;
  float slope;  // Weight of a pixel in the loss.
  bool adds;    // Whether to add to an existing gradient of alpha.
};

// The numbers that one partial sum, in double precision, covers.
inline constexpr int kSummed = 8192;

// The results of a loss for each view; float64. Means without any weight are 0.
enum LossValue { kWeight, kL1, kL2, kDssim, kLossValues };

}  // namespace lumigrad::training
