// The gradients of a sphere and of the camera from the sphere's sums.
#pragma once

#include "spheres/math/setup.h"

LG_BEGIN_ENGINE(spheres)

// Exact: converts a sphere's sums (blend.h, ExactRow) in place to dL/d centre, in the camera frame, and dL/d radius.
// Like a record, a row is an array of floats, or of packs for several spheres.
template <bool kOrthogonal, class F, class Record>
LG_INLINE void exact_row(const Camera& c, const Record& record, F* row) {
  using namespace exact_record;
  const F distance = record[kDistance], inverse_radius = F(1.0f) / (distance * record[kRatio]);
  const F unit = static_cast<float>(1.0 / c.scale_x), swing = unit * inverse_radius;
  if constexpr (kOrthogonal) {
    row[0] = row[0] * (swing * inverse_radius);
    row[1] = row[1] * (swing * inverse_radius);
    row[2] = row[2] * inverse_radius;
  } else {
    const F x = (record[kXHigh] - F(static_cast<float>(c.centre_x))) + record[kXLow];
    const F y = (record[kYHigh] - F(static_cast<float>(c.centre_y))) + record[kYLow];
    const F qz = sqrt(F(record[kScale])) / swing;
    const F qx = qz * x * unit, qy = qz * y * F(static_cast<float>(1.0 / c.scale_y));
    const F gx = row[0] * swing, gy = row[1] * swing;
    const F inverse_distance = record[kRatio] * inverse_radius;
    const F along = ((row[2] - row[3]) - (qx * gx + qy * gy)) * (inverse_distance * inverse_distance);
    row[0] = gx + qx * along;
    row[1] = gy + qy * along;
    row[2] = qz * along;
  }
  row[3] = row[3] * inverse_radius;
}

// dL/d centre, world frame, from the row's first three sums. Compat's orthogonal cameras multiply componentwise with
// the column sums of the rotation (spec section 7; correct only for a signed identity).
template <bool kExact, bool kOrthogonal>
LG_INLINE void centre_gradient(const Camera& c, const float* row, float world[3]) {
  if constexpr (kExact) {
    const double* m = c.rotation64;
    for (int k = 0; k < 3; ++k) {
      world[k] = static_cast<float>(m[k] * row[0] + m[3 + k] * row[1] + m[6 + k] * row[2]);
    }
  } else {
    for (int k = 0; k < 3; ++k) {
      const float factor = kOrthogonal ? (c.pixel_x[k] + c.pixel_y[k]) / (2.0f * c.half_pixel) + c.forward[k] : 1.0f;
      world[k] = row[k] * factor;
    }
  }
}

LG_INLINE void cross3(const float a[3], const float b[3], double out[3]) {
  out[0] = static_cast<double>(a[1]) * b[2] - static_cast<double>(a[2]) * b[1];
  out[1] = static_cast<double>(a[2]) * b[0] - static_cast<double>(a[0]) * b[2];
  out[2] = static_cast<double>(a[0]) * b[1] - static_cast<double>(a[1]) * b[0];
}

// Compat, orthogonal: adds a sphere's part in pixel_x and pixel_y (spec section 7).
LG_INLINE void compat_orthogonal_terms(const Camera& c, const float position[3], const float* row, double weight,
                                       double* sums) {
  const double pixel = 2.0 * static_cast<double>(c.half_pixel);
  const float b[3] = {position[0] - c.eye[0], position[1] - c.eye[1], position[2] - c.eye[2]};
  const float q[3] = {dot3(c.rotation, b[0], b[1], b[2]), dot3(c.rotation + 3, b[0], b[1], b[2]),
                      dot3(c.rotation + 6, b[0], b[1], b[2])};
  double y_x[3], y_z[3], x_z[3], y_q[3], x_q[3];
  cross3(c.pixel_y, c.pixel_x, y_x);
  cross3(c.pixel_y, c.forward, y_z);
  cross3(c.pixel_x, c.forward, x_z);
  cross3(c.pixel_y, q, y_q);
  cross3(c.pixel_x, q, x_q);
  const double norm = sqrt64(y_x[0] * y_x[0] + y_x[1] * y_x[1] + y_x[2] * y_x[2]);
  const double inverse = 1.0 / (norm > 1e-6 ? norm : 1e-6);
  const double depth = static_cast<double>(dot3(c.forward, q[0], q[1], q[2]));
  const double sum_x = static_cast<double>(c.pixel_x[0]) + c.pixel_x[1] + c.pixel_x[2];
  const double sum_y = static_cast<double>(c.pixel_y[0]) + c.pixel_y[1] + c.pixel_y[2];
  for (int k = 0; k < 3; ++k) {
    const double in_pixels = b[k] / pixel;
    const double x = row[0] * (in_pixels - c.pixel_x[k] * sum_x * in_pixels / (pixel * pixel)) +
                     row[2] * (depth * y_z[k] - y_q[k]) * inverse;
    const double y = row[1] * (in_pixels - c.pixel_y[k] * sum_y * in_pixels / (pixel * pixel)) +
                     row[2] * (depth * x_z[k] - x_q[k]) * inverse;
    sums[6 + k] += weight * x;
    sums[9 + k] += weight * y;
  }
}

// Adds a sphere's terms to the camera sums (params.h, Gradients::camera).
template <bool kExact, bool kOrthogonal>
LG_INLINE void add_camera_terms(const Camera& c, const float position[3], const float* row, float weight,
                                double* sums) {
  if constexpr (kExact) {
    for (int i = 0; i < 3; ++i) {
      for (int k = 0; k < 3; ++k) {
        sums[3 * i + k] += static_cast<double>(row[i]) * (static_cast<double>(position[k]) - c.eye64[k]);
      }
      sums[9 + i] += static_cast<double>(row[i]);
    }
  } else {
    float world[3];
    centre_gradient<kExact, kOrthogonal>(c, row, world);
    for (int k = 0; k < 3; ++k) sums[k] -= static_cast<double>(weight) * world[k];
    if constexpr (kOrthogonal) compat_orthogonal_terms(c, position, row, static_cast<double>(weight), sums);
  }
}

// Compat: the final operations after all spheres and pixels are summed.
LG_INLINE void compat_camera_totals(const Camera& c, double contributors, double* sums) {
  if (c.orthogonal) {
    const double pixel = 2.0 * static_cast<double>(c.half_pixel);
    for (int k = 0; k < 3; ++k) sums[6 + k] += sums[12] * c.pixel_x[k] / (pixel * pixel);
  } else {
    for (int k = 0; k < 3; ++k) sums[k] -= sums[3 + k];
  }
  // If nothing was tracked, Pulsar divides 0 by 0; here the gradient is 0.
  const double inverse = contributors > 0.0 ? 1.0 / contributors : 0.0;
  for (int i = 0; i < 12; ++i) sums[i] *= inverse;
}

LG_END
