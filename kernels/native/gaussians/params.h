// Inputs and outputs of the Gaussian engine for one call; plain structs, the same for CPU and CUDA.
// Pointers are to the device's memory; null: absent (inputs) or not needed (outputs).
// There are S scenes of N Gaussians each and V views; view v renders scene View::scene.
#pragma once

#include <cstdint>

namespace lumigrad::gaussians {

inline constexpr int kMaxExtent = 32768;
inline constexpr int kMaxDegree = 4;
inline constexpr int kMaxCoefficients = (kMaxDegree + 1) * (kMaxDegree + 1);

enum class Model : int32_t { pinhole, orthographic, fisheye };

// From a slice's Gaussians to a view's camera: p = rotation * mean + translation. `eye` is the camera's position in the
// slice's frame, from which the direction of the spherical harmonics is taken.
struct Pose {
  float rotation[9];  // Row-major; need not be orthonormal.
  float translation[3];
  float eye[3];
};
inline constexpr int kPoseFloats = 15;

struct View {
  int32_t width, height;
  int32_t scene;
  Model model;
  float fx, fy;                      // Pixels (orthographic: pixels per scene unit).
  float cx, cy;                      // Pixels, in the frame in which the first pixel's centre is at pixel_center.
  float min_u, max_u, min_v, max_v;  // X/Z and Y/Z are clamped to these in the Jacobian of a pinhole.
  int32_t distorted;
  float distortion[8];       // Brown-Conrady, in OpenCV's order: k1 k2 p1 p2 k3 k4 k5 k6.
  float max_radius_squared;  // Of (X/Z, Y/Z): beyond it the distortion folds back, and Gaussians are culled.
  // Inria's: columns x, y and w of the full projection: h_k = sum_i projection[4 k + i] * mean[i] + projection[4 k +
  // 3].
  int32_t projected;
  float projection[12];
};

struct Settings {
  int32_t inria;           // Inria's image formation instead of gsplat's (spec section 0).
  int32_t fork_gradients;  // The depth fork's own gradients (spec section 6); with `inria`.
  int32_t antialiased;     // Opacities times the compensation rho (spec section 1.4).
  int32_t sh_degree;       // Active degree, 0 to 4; -1: colours are given.
  int32_t deterministic;   // Sums in a fixed order on CUDA too.
  float alpha_min, alpha_max;
  float transmittance_min;
  float eps2d;
  float near, far;
  float radius_clip;   // Pixels.
  float pixel_center;  // 0.5 or 0: where the centre of pixel (0, 0) is.
  float scale_modifier;
};

struct Scene {
  int32_t scenes, count;     // S, N
  int32_t channels;          // D
  int32_t coefficients;      // Stored per channel; 0 without spherical harmonics.
  int32_t colors_per_view;   // colors is [V, N, D]
  const float* means;        // [S, N, 3]
  const float* quats;        // [S, N, 4] w, x, y, z
  const float* scales;       // [S, N, 3]
  const float* covariances;  // [S, N, 6] xx xy xz yy yz zz, instead of quats and scales
  const float* opacities;    // [S, N]
  const float* sh;           // [S, N, coefficients, D]
  const float* colors;       // [S, N, D]
  const float* background;   // [V, D] or null: 0
  // Slice g is Gaussians [slice_begins[g], slice_begins[g + 1]) of each scene. Begins and poses are host memory, also
  // on CUDA.
  int32_t slices;
  const int32_t* slice_begins;  // [slices + 1]
  const Pose* poses;            // [V, slices]
};

// [V, H, W, ...] unless stated otherwise. Entries of culled Gaussians are 0.
struct Outputs {
  float* color;                // [D]
  float* alpha;                //
  float* transmittance;        //
  float* depth;                // Accumulated.
  float* expected_depth;       //
  float* inverse_depth;        // Accumulated 1 / Z.
  int32_t* contributors;       //
  int32_t* radii;              // [V, N, 2] pixels
  float* means2d;              // [V, N, 2] pixels
  float* depths;               // [V, N]
  float* conics;               // [V, N, 3]
  float* projected_opacities;  // [V, N] times the compensation
};

// The inputs of backward beside the scene and the forward state: rendered images and upstream gradients.
struct Upstream {
  const float* color;          // [V, H, W, D] rendered
  const float* transmittance;  // [V, H, W] rendered
  const float* depth;          // Rendered, with d_depth or d_expected_depth.
  const float* inverse_depth;  // Rendered, with d_inverse_depth.
  const float* d_color;
  const float* d_alpha;
  const float* d_transmittance;
  const float* d_depth;
  const float* d_expected_depth;
  const float* d_inverse_depth;
  const float* d_means2d;  // [V, N, 2] added to the gradients from the images
};

// Written, not added; summed over the views of a scene unless shaped [V, ...].
struct Gradients {
  float* means;        // [S, N, 3]
  float* quats;        // [S, N, 4]
  float* scales;       // [S, N, 3]
  float* covariances;  // [S, N, 6]
  float* opacities;    // [S, N]
  float* sh;           // [S, N, coefficients, D]
  float* colors;       // [S, N, D] or [V, N, D]
  float* background;   // [V, D]
  float* means2d;      // [V, N, 2] pixels
  float* means2d_abs;  // [V, N, 2]: sums of absolute values over the pixels
  int32_t* touched;    // [S, N] 1 where a Gaussian took part in a pixel of any view (or had a d_means2d), else 0
  double* poses;       // [V, slices, 15]: rotation, translation, eye, each as if the others were fixed
  double* intrinsics;  // [V, 4]: fx, fy, cx, cy
  double* projection;  // [V, 12]
};

// What a pixel blends: the channels, then depth and inverse depth where they are asked for.
struct Features {
  int colors = 0;
  bool depth = false, inverse_depth = false;
  constexpr int total() const { return colors + depth + inverse_depth; }
};

inline Features features_of(const Scene& scene, const Outputs& outputs) {
  return {outputs.color != nullptr ? scene.channels : 0, outputs.depth != nullptr || outputs.expected_depth != nullptr,
          outputs.inverse_depth != nullptr};
}

}  // namespace lumigrad::gaussians
