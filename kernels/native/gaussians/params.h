// Inputs and outputs of the Gaussian engine for one call: plain structs, the same for CPU and CUDA.
// Pointers are to the device's memory; null means absent (inputs) or not needed (outputs).
// There are S scenes of N Gaussians each and V views; view v renders scene View::scene.
#pragma once

#include <cstdint>

namespace lumigrad::gaussians {

inline constexpr int kMaxExtent = 32768;
inline constexpr int kMaxDegree = 4;
inline constexpr int kMaxCoefficients = (kMaxDegree + 1) * (kMaxDegree + 1);

enum class Model : int32_t { pinhole, orthographic, fisheye };

// The pose of a slice's Gaussians in a view's camera: p = rotation * mean + translation. `eye` is the camera's position
// in the slice's frame, from which the direction of the spherical harmonics is taken.
struct Pose {
  float rotation[9];  // Row-major; need not be orthonormal.
  float translation[3];
  float eye[3];
};
inline constexpr int kPoseFloats = 15;
inline constexpr int kRotationFloats = 9;
// The sums of a slice for its gradients in a view. First the pose's partial derivatives, each with the others fixed.
// Then, if the slice moves, in the frame of the camera at the start: turns of its pose about its origin at each point's
// own time, carried to the end of the exposure (without the turn until then), translations, and translations times the
// point's time.
inline constexpr int kSliceMotionSums = 9;
inline constexpr int kPoseSums = kPoseFloats + kSliceMotionSums;

struct View {
  int32_t width, height;
  int32_t scene;
  Model model;
  float fx, fy;                      // Pixels (orthographic: pixels per scene unit).
  float cx, cy;                      // Pixels; the first pixel's centre is at pixel_center.
  float min_u, max_u, min_v, max_v;  // X/Z and Y/Z are clamped to these in the Jacobian of a pinhole.
  int32_t distorted;
  float distortion[8];       // Brown-Conrady, in OpenCV's order: k1 k2 p1 p2 k3 k4 k5 k6.
  float max_radius_squared;  // Largest square of (X/Z, Y/Z), beyond which the distortion folds back: Gaussians there
                             // are culled.
  // Inria's: columns x, y and w of the full projection: h_k = sum_i projection[4 k + i] * mean[i] + projection[4 k +
  // 3].
  int32_t projected;
  float projection[12];
};

// Sensors: views of real cameras, with exact lenses and shutters in doubles (sensors spec sections 1, 4, 5). A lidar's
// pixels are its returns, row by row of a pattern of angles.
enum class SensorLens : int32_t { pinhole, opencv, orthographic, fisheye, ftheta, lidar };
enum class Shutter : int32_t { global, top_to_bottom, left_to_right, bottom_to_top, right_to_left };

inline constexpr int kWindshieldOrder = 5;

// Indices of a lens's parameters, and of their gradients. Parameters that a lens does not have are 0.
namespace lens_parameter {
inline constexpr int kWindshield = (kWindshieldOrder + 1) * (kWindshieldOrder + 2) / 2;
enum Index {
  kFx,
  kFy,
  kCx,
  kCy,
  kRadial,  // k1 to k6, or a fisheye's k1 to k4
  kTangential = kRadial + 6,
  kThinPrism = kTangential + 2,
  kAngleToDistance = kThinPrism + 4,
  kDistanceToAngle = kAngleToDistance + 6,
  kLinear = kDistanceToAngle + 6,  // c, d, e
  kHorizontal = kLinear + 3,
  kVertical = kHorizontal + kWindshield,
  kCount = kVertical + kWindshield
};
}  // namespace lens_parameter

// A sensor and its pose, world to camera: at the start of the exposure p = rotation * x + translation; at a time t the
// pose is turned further by t * angle about `axis`, and translated by t * motion.
struct Sensor {
  SensorLens lens;
  Shutter shutter;
  int32_t continuous;         // Whether the time is a smooth function of the pixel, not of its whole row or column.
  int32_t monotone;           // Whether points are valid where the radial map rises, not within gsplat's limits.
  int32_t inverse_reference;  // f-theta: whether distances follow from the inverse of the angle's polynomial.
  int32_t windshield;         // Whether the sensor has a windshield.
  double parameters[lens_parameter::kCount];
  double inverse_windshield[2 * lens_parameter::kWindshield];  // From behind the windshield to the front; for rays.
  double limit;           // The largest angle from the axis, or radius of (X/Z, Y/Z), that the lens shows.
  double distance_limit;  // f-theta: the distance up to which distance_to_angle rises.
  double guess;           // Fisheye in gsplat's domain: the angle over the distance, from which the inverse starts.
  double rotation[9], translation[3];
  double axis[3], angle, motion[3];
  int32_t behind;  // Whether points beside and behind the camera are visible too, up to `limit`.
  // A lidar spins about z from x towards y, or clockwise: the azimuth at which it begins, its highest elevation, and
  // their spans, radians.
  int32_t clockwise;
  double azimuth, azimuth_span, elevation, elevation_span;
};

// The pose from a slice's frame to the world. If the slice moves, this is the pose at the start of the exposure; at a
// time t it is turned further by t * angle about `axis`, and translated by t * motion.
struct SlicePose {
  double rotation[9], translation[3];
  double axis[3], angle, motion[3];
  int32_t moving;  // Number among the moving slices; -1 if it does not move.
};

// The sums over the Gaussians of a sensor's view, for its gradients: the lens's parameters; then, in the camera's frame
// at the start, turns of the pose about the camera at each point's own time, these turns carried to the end of the
// exposure (without the turn until then), translations, and translations times the point's time.
inline constexpr int kMotionSums = 12;
inline constexpr int kSensorSums = lens_parameter::kCount + kMotionSums;
// The number of sums along rays, including the inverse windshield's.
inline constexpr int kRaySums = kSensorSums + 2 * lens_parameter::kWindshield;

// The seven sigma points of a sensor's view.
struct Unscented {
  double spread;              // Squared distance of the points from the mean, in variances.
  double weight, first_mean;  // Weights of the six points around the first, of the first point in the mean,
  double first_covariance;    // and of the first point in the covariance.
  double margin;              // Distance by which a point may lie outside the image, relative to its size.
  int32_t require_all;        // Whether all points must be valid.
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
  int32_t rectangles;  // Whether only pixels within a Gaussian's rectangle see it.
  // Settings of sensors.
  Unscented unscented;
  int32_t by_jacobian;        // Whether to project by the Jacobian of the lens instead of by sigma points.
  int32_t distance_order;     // Whether depth is the distance instead of z.
  int32_t gsplat_bounds;      // Whether rectangles are gsplat's, of whole tiles.
  int32_t tile_size;          // Edge of gsplat's tiles, pixels.
  int32_t rays;               // Whether Gaussians respond along the rays of pixels in 3D, instead of on the film.
  int32_t frozen_projection;  // gsplat's gradients: none pass through the projection.
  int32_t surfels;            // Whether Gaussians are flat: 2D Gaussians, whose third scale has no effect.
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
  // Slice g is Gaussians [slice_begins[g], slice_begins[g + 1]) of each scene. Begins and poses are in host memory,
  // even on CUDA.
  int32_t slices;
  const int32_t* slice_begins;  // [slices + 1]
  const Pose* poses;            // [V, slices]
  // In host memory, even on CUDA; null unless the views are sensors.
  const Sensor* sensors;         // [V]
  const SlicePose* slice_poses;  // [slices]
  int32_t moving_slices;
  const float* rays;  // [V, H, W, 6] origins and directions in the world, instead of the pixels' own; or null
  // Angles of lidars, radians: [V, 2 H + W] elevations and azimuth offsets of rows, azimuths of columns; or null.
  const double* lidar_angles;
};

// [V, H, W, ...] unless stated otherwise. Entries of culled Gaussians are 0.
struct Outputs {
  float* color;           // [D]
  uint8_t* color_levels;  // [D] Colours from 0 to 255, in addition to `color` or instead of it.
  float* alpha;           //
  float* transmittance;   //
  float* depth;           // Accumulated.
  float* expected_depth;  //
  float* inverse_depth;   // Accumulated 1 / Z.
  float* hit_distance;    // Accumulated distances to the largest response along rays.
  float* expected_hit_distance;
  float* normals;              // [3] Along rays, or of surfels: accumulated, world frame.
  float* median_depth;         // Depth of the last surfel with a transmittance above 1/2 in front of it.
  float* distortion;           // Spread of the depths of a pixel's surfels.
  int32_t* contributors;       //
  int32_t* radii;              // [V, N, 2] pixels
  float* means2d;              // [V, N, 2] pixels
  float* depths;               // [V, N]
  float* conics;               // [V, N, 3]
  float* projected_opacities;  // [V, N] times the compensation
};

// The inputs of backward besides the scene and the forward state: rendered images and upstream gradients.
struct Upstream {
  const float* color;          // [V, H, W, D] rendered
  const float* transmittance;  // [V, H, W] rendered
  const float* depth;          // Rendered, with d_depth or d_expected_depth.
  const float* inverse_depth;  // Rendered, with d_inverse_depth.
  const float* hit_distance;   // Rendered, with its gradient or that of the expected distance.
  const float* normals;        // Rendered, with d_normals.
  const float* distortion;     // Rendered, with d_distortion.
  const float* d_color;
  const float* d_alpha;
  const float* d_transmittance;
  const float* d_depth;
  const float* d_expected_depth;
  const float* d_inverse_depth;
  const float* d_hit_distance;
  const float* d_expected_hit_distance;
  const float* d_normals;
  const float* d_median_depth;
  const float* d_distortion;
  const float* d_means2d;  // [V, N, 2] added to the gradients from the images
};

inline constexpr int kShFactors = 6;

// Outputs are overwritten, not added to; summed over the views of a scene unless shaped [V, ...].
struct Gradients {
  float* means;        // [S, N, 3]
  float* quats;        // [S, N, 4]
  float* scales;       // [S, N, 3]
  float* covariances;  // [S, N, 6]
  float* opacities;    // [S, N]
  float* sh;           // [S, N, coefficients, D]
  float* sh_factors;   // [N, 6] for one scene in one view, on the device: a direction and the colour's gradient; the
                       // direction's harmonics times this gradient are the gradients of the coefficients.
  float* colors;       // [S, N, D] or [V, N, D]
  float* background;   // [V, D]
  float* means2d;      // [V, N, 2] pixels
  float* means2d_abs;  // [V, N, 2]: sums of absolute values over the pixels
  int32_t* touched;    // [S, N] 1 if a Gaussian contributed to a pixel of any view (or had a d_means2d), else 0
  double* poses;       // [V, slices, kPoseSums]
  double* normals;     // [V, slices, 9]: of the slices' rotations, only through the normals of surfels
  double* intrinsics;  // [V, 4]: fx, fy, cx, cy
  double* projection;  // [V, 12]
  double* sensors;     // [V, kSensorSums]
  double* inverse_windshield;  // [V, 2 kWindshield]
  float* rays;                 // [V, H, W, 6]
  float* lidar_angles;         // [V, H, W, 2] of the azimuth and the elevation of each return
};

// Features that a pixel blends: the channels, then depth and inverse depth if requested, then normals of surfels.
struct Features {
  int colors = 0;
  bool depth = false, inverse_depth = false;
  // Features along rays, which depend on the ray and the Gaussian and so are not in the records.
  bool rays = false, hit_distance = false, normals = false;
  // Images of surfels that follow from the depths in a pixel.
  bool surfels = false, median_depth = false, distortion = false;
  constexpr int total() const { return colors + depth + inverse_depth + (surfels && normals ? 3 : 0); }
  constexpr bool of_depths() const { return median_depth || distortion; }
};

inline Features features_of(const Settings& settings, const Scene& scene, const Outputs& outputs) {
  return {outputs.color != nullptr || outputs.color_levels != nullptr ? scene.channels : 0,
          outputs.depth != nullptr || outputs.expected_depth != nullptr || outputs.median_depth != nullptr ||
              outputs.distortion != nullptr,
          outputs.inverse_depth != nullptr,
          settings.rays != 0,
          outputs.hit_distance != nullptr || outputs.expected_hit_distance != nullptr,
          outputs.normals != nullptr,
          settings.surfels != 0,
          outputs.median_depth != nullptr,
          outputs.distortion != nullptr};
}

}  // namespace lumigrad::gaussians
