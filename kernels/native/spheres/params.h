// Inputs and outputs of the sphere engine for one view, on CUDA for all views of a call: plain structs, the same for
// CPU and CUDA. Pointers are to the device's memory; null means absent (inputs) or not needed (outputs).
#pragma once

#include <cstdint>

namespace lumigrad::spheres {

inline constexpr int kMaxTrack = 128;
inline constexpr int kMaxExtent = 32768;  // Rectangles are stored as 16-bit integers.

// A view. Pixels are counted in the aperture: film pixel (x, y) is aperture pixel (x + border_x, y + border_y). It has
// a float form in the world frame, whose bits compat needs, and a double form in the camera frame.
struct Camera {
  int32_t width, height;  // Film, pixels.
  int32_t orthogonal;
  int32_t border_x, border_y;
  float aperture_width, aperture_height;  // Pixels, for compat's orthogonal ray offset.
  float eye[3];                           // World.
  float origin[3];                        // Vector from the eye to the centre of aperture pixel (0, 0); perspective.
  float pixel_x[3], pixel_y[3];           // Steps per pixel; world.
  float forward[3];                       // Unit; world.
  float rotation[9];                      // Rows: right, down, forward.
  float half_pixel;                       // |pixel_x| / 2.
  float focal;                            // Distance of the film; perspective.
  float pixels_per_unit_x, pixels_per_unit_y;
  float axis_x, axis_y;  // Aperture pixel coordinates where the optical axis pierces the film.
  float z_min, z_max, inverse_range;

  double eye64[3];
  double rotation64[9];
  // x_pixel = scale_x * q_x / q_z + centre_x (perspective) or scale_x * q_x + centre_x (orthogonal), film pixels whose
  // centres are at whole numbers; q in the camera frame.
  double scale_x, scale_y;
  double centre_x, centre_y;
  double z_min64, z_max64;
};

struct Settings {
  int32_t exact;
  int32_t deterministic;  // Sums in a fixed order on CUDA too.
  int32_t n_track;        // T; 0: no tracker.
  uint32_t max_hits;      // 2^32 - 1: no limit.
  float gamma;
  float allowed_difference;
  float background_depth;  // Normalised closeness of the background.
  double gamma64;
  double background_depth64;
};

struct Scene {
  int32_t count;            // N
  int32_t channels;         // K
  const float* positions;   // [N, 3]
  const float* colors;      // [N, K]
  const float* radii;       // [N]
  const float* opacities;   // [N] or null: all 1.
  const float* background;  // [K]
};

// All [H, W, ...].
struct Outputs {
  float* color;           // [K]
  uint8_t* color_levels;  // [K] Colours from 0 to 255, on the CPU only: in addition to `color` or instead of it.
  float* alpha;           //
  float* depth;           //
  float* info;            // [3 + 2 T]
  int32_t* ids;           // [T]
  float* weights;         // [T]
  int32_t* hits;          //
  float* blend;           // [3] exact's state for backward: M's whole part, M's rest, D.
  int32_t* stop;  // Exact's state: where the pixel stopped, in its tile's list (CPU) or among all spheres by distance
                  // (CUDA).
};

// The inputs of backward besides the scene: forward's results and the upstream gradients.
struct Upstream {
  const float* color;    // [H, W, K] rendered
  const float* info;     // [H, W, 3 + 2 T] compat
  const float* blend;    // [H, W, 3] exact
  const int32_t* stop;   // [H, W] exact
  const int32_t* ids;    // [H, W, T] exact, with d_depth
  const float* d_color;  // [H, W, K]
  const float* d_alpha;  // [H, W] exact
  const float* d_depth;  // [H, W] exact
};

// Sums over the pixels of one view; overwritten, not added to.
inline constexpr int kCameraSums = 24;
struct Gradients {
  float* positions;   // [N, 3]
  float* colors;      // [N, K]
  float* radii;       // [N]
  float* opacities;   // [N]
  float* background;  // [K] exact
  int32_t* touched;   // [N] number of pixels to which the sphere contributed
  // Exact, camera frame: 0:9 sum of outer(dL/dq, P - eye); 9:12 sum of dL/dq; 12, 13 dL/d centre_x, centre_y and
  //   14, 15 sums of x and y times the terms of 12, 13, all before division by the scale (perspective); 16 dL/d log of
  //   the pixel size (orthogonal); 17 dL/d z_min; 18 dL/d gamma.
  // Compat, world frame: 0:3 eye, 3:6 pixel_0_0_center, 6:9 pixel_x, 9:12 pixel_y, normalised as Pulsar does.
  double* camera;  // [24]
};

}  // namespace lumigrad::spheres
