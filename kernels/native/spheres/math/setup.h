// Setup of a sphere for a view: visibility, the rectangle of pixels that it may hit, and its record for blending.
#pragma once

#include "common/math/pixel_rectangle.h"
#include "common/math/trig.h"
#include "spheres/params.h"

LG_BEGIN_ENGINE(spheres)

inline constexpr float kFeps = 1e-6f;

// The fields of a record of 16 floats. It has colours only for 3 channels.
namespace compat_record {
enum { kX, kY, kZ, kT, kR, kInverseR, kMaxSquare, kTinyReach, kNear, kOpacity, kExtraX, kExtraY, kColor };
enum { kInverseT = 15 };
}  // namespace compat_record
// kDistance: along z of an orthogonal camera, else from the eye. kRatio: radius / distance. kSlope: decrease of the
// exponent per radius of depth.
namespace exact_record {
enum {
  kXHigh,
  kXLow,
  kYHigh,
  kYLow,
  kMaxSquare,
  kSlope,
  kDistance,
  kRatio,
  kHigh,
  kLow,
  kScaleLow,
  kOpacity,
  kColor,
  kScale = 15
};
}
inline constexpr int kRecordFloats = 16;

struct SetupResult {
  float record[kRecordFloats];
  float near;  // Sort key; > 0.
  bool visible;
  PixelRectangle candidates;  // Pixels that must test the sphere.
  float area;                 // Compat: area of Pulsar's clipped rectangle, pixels.
  bool wide;                  // Compat: whether that rectangle is at least 3 x 3.
};

LG_INLINE float dot3(const float a[3], float x, float y, float z) { return (x * a[0] + y * a[1]) + z * a[2]; }

// The largest float s with sqrt(s), rounded to nearest, <= reach: replaces the test sqrt(s) <= reach. sqrt(s) rounds to
// at most `reach` iff s is below the square of the midpoint to the next float, which has at most 50 bits and so is
// exact in double.
LG_INLINE float largest_square(float reach) {
  const float next = from_bits(bits(reach) + 1);
  const double middle = (static_cast<double>(reach) + static_cast<double>(next)) * 0.5;
  const double square = middle * middle;
  const float rounded = static_cast<float>(square);
  return static_cast<double>(rounded) >= square ? from_bits(bits(rounded) - 1) : rounded;
}

struct Interval {
  float low, high;
};

// The interval between the tangents to a sphere on the film along one axis (spec section 4): `lateral` is the centre's
// offset along the axis, `sign` is -1 for y. Evaluated in double and rounded to float where Pulsar's arithmetic rounds.
LG_INLINE Interval compat_limits(float lateral, float depth, float radius, float focal, float scale, float axis,
                                 float sign) {
  const float distance = max(sqrt(lateral * lateral + depth * depth), kFeps);
  const float cosine = max(min(depth / distance, 1.0f), -1.0f);
  const float sine = max(min(radius / distance, 1.0f), -1.0f);
  const float side = lateral > 0.0f ? sign : -sign;
  const float alpha = side * static_cast<float>(acos64(cosine));
  const float theta = static_cast<float>(asin64(sine));
  const float a = static_cast<float>(tan64(static_cast<double>(alpha - theta))) * focal * (sign * scale) + axis;
  const float b = static_cast<float>(tan64(static_cast<double>(alpha + theta))) * focal * (sign * scale) + axis;
  return {min(a, b), max(a, b)};
}

// Spec section 4. `orthogonal` is a compile-time constant at the caller.
LG_INLINE SetupResult compat_setup(const Camera& c, bool orthogonal, float px, float py, float pz, float radius,
                                   float opacity) {
  using namespace compat_record;
  SetupResult out;
  const float bx = px - c.eye[0], by = py - c.eye[1], bz = pz - c.eye[2];
  const float t = sqrt((bx * bx + by * by) + bz * bz);
  const float nx = bx / t, ny = by / t, nz = bz / t;
  const float qx = dot3(c.rotation, bx, by, bz), qy = dot3(c.rotation + 3, bx, by, bz);
  const float qz = dot3(c.rotation + 6, bx, by, bz);
  const float near = orthogonal ? qz - radius : t - radius;
  Interval x, y;
  if (orthogonal) {
    x = {(qx - radius) * c.pixels_per_unit_x + c.axis_x, (qx + radius) * c.pixels_per_unit_x + c.axis_x};
    y = {(qy - radius) * c.pixels_per_unit_y + c.axis_y, (qy + radius) * c.pixels_per_unit_y + c.axis_y};
  } else {
    x = compat_limits(qx, qz, radius, c.focal, c.pixels_per_unit_x, c.axis_x, 1.0f);
    y = compat_limits(qy, qz, radius, c.focal, c.pixels_per_unit_y, c.axis_y, -1.0f);
  }
  const float left = static_cast<float>(c.border_x), right = static_cast<float>(c.border_x + c.width);
  const float top = static_cast<float>(c.border_y), bottom = static_cast<float>(c.border_y + c.height);
  // The comparisons drop the sphere if a value is NaN.
  bool visible = (near >= c.z_min) & (near <= c.z_max) & (dot3(c.forward, nx, ny, nz) >= kFeps);
  visible &= (x.high > left) & (x.low < right - 0.5f) & (y.high > top) & (y.low <= bottom - 0.5f);

  // Pulsar's rectangle; its candidate test includes one more pixel to the left and above.
  const int x0 = truncate(visible ? max(x.low, left) : left), y0 = truncate(visible ? max(y.low, top) : top);
  const int x1 = truncate(visible ? min(__builtin_ceilf(min(x.high, right)) + 1.0f, right) : left);
  const int y1 = truncate(visible ? min(__builtin_ceilf(min(y.high, bottom)) + 1.0f, bottom) : top);
  const int fx0 = x0 - c.border_x - 1, fy0 = y0 - c.border_y - 1;
  out.candidates.x0 = static_cast<uint16_t>(fx0 > 0 ? fx0 : 0);
  out.candidates.y0 = static_cast<uint16_t>(fy0 > 0 ? fy0 : 0);
  out.candidates.x1 = static_cast<uint16_t>(x1 - c.border_x);
  out.candidates.y1 = static_cast<uint16_t>(y1 - c.border_y);
  out.area = static_cast<float>(x1 - x0) * static_cast<float>(y1 - y0);
  out.wide = (x1 >= x0 + 3) & (y1 >= y0 + 3);
  out.visible = visible;
  out.near = near;

  const float cx = nx * t, cy = ny * t, cz = nz * t;  // Recomputed, as Pulsar does.
  float reach = radius, tiny_reach = -1.0f;
  if (orthogonal) {
    const float pixel = 2.0f * c.half_pixel;
    out.record[kX] = dot3(c.rotation, cx, cy, cz);
    out.record[kY] = dot3(c.rotation + 3, cx, cy, cz);
    out.record[kZ] = dot3(c.rotation + 6, cx, cy, cz);
    out.record[kExtraX] = out.record[kX] / pixel + c.axis_x;
    out.record[kExtraY] = out.record[kY] / pixel + c.axis_y;
    tiny_reach = radius / pixel < 1.0f ? 1.0f : -1.0f;
  } else {
    out.record[kX] = cx;
    out.record[kY] = cy;
    out.record[kZ] = cz;
    out.record[kExtraX] = out.record[kExtraY] = 0.0f;
    // A pixel is the sphere's centre pixel if the chord is below half a pixel and a half at the sphere's distance.
    const float half = static_cast<float>((static_cast<double>(c.half_pixel) * 1.5 * static_cast<double>(t)) *
                                          static_cast<double>(1.0f / c.focal));
    const float projected = ((radius * c.focal) * (1.0f / t)) / (2.0f * c.half_pixel);
    tiny_reach = projected < 1.0f ? half : -1.0f;
    const float below_half = from_bits(bits(half) - 1);
    reach = max(radius, below_half);
  }
  out.record[kT] = t;
  out.record[kR] = radius;
  out.record[kInverseR] = 1.0f / radius;
  out.record[kMaxSquare] = largest_square(reach);
  out.record[kTinyReach] = tiny_reach;
  out.record[kNear] = near;
  out.record[kOpacity] = opacity;
  out.record[kInverseT] = 1.0f / t;
  return out;
}

struct Interval64 {
  double low, high;
};

// Selects without a branch, which would prevent vectorisation of the loop over the spheres.
LG_INLINE double select64(bool mask, double a, double b) {
  int64_t x, y;
  memcpy(&x, &a, sizeof(x));
  memcpy(&y, &b, sizeof(y));
  const int64_t all = -static_cast<int64_t>(mask), result = (x & all) | (y & ~all);
  memcpy(&a, &result, sizeof(a));
  return a;
}

// The extent of a sphere's outline on the plane z = 1 along one axis: tan(angle -+ half angle) in closed form. If a
// tangent does not meet the plane in front of the eye, the extent is unbounded on that side.
LG_INLINE Interval64 exact_limits(double lateral, double depth, double radius) {
  constexpr double kFar = 1e30;
  const double c2 = lateral * lateral + depth * depth - radius * radius;
  const double c = sqrt64(c2 > 0.0 ? c2 : 0.0);
  const double low_den = depth * c + lateral * radius, high_den = depth * c - lateral * radius;
  const double inverse = 1.0 / (low_den * high_den);
  const double low = (lateral * c - depth * radius) * high_den * inverse;
  const double high = (lateral * c + depth * radius) * low_den * inverse;
  return {select64((c2 > 0.0) & (low_den > 0.0), low, -kFar), select64((c2 > 0.0) & (high_den > 0.0), high, kFar)};
}

// First and last whole number in [low, high], widened by a hundredth and clipped to [0, size).
LG_INLINE void pixel_range(double low, double high, int size, int* first, int* end) {
  const double limit = static_cast<double>(size);
  const double a = low - 0.01, b = high + 0.01;
  *first = static_cast<int>(__builtin_ceil(a > 0.0 ? (a < limit ? a : limit) : 0.0));
  *end = b < 0.0 ? 0 : static_cast<int>(__builtin_floor(b < limit - 1.0 ? b : limit - 1.0)) + 1;
}

// The exact engine's geometry: the projected centre in pixels, and the exponent (1 - nd) / gamma at the centre's
// distance, each as whole part and rest, so that differences are free of cancellation.
LG_INLINE SetupResult exact_setup(const Camera& c, const Settings& s, bool orthogonal, float px, float py, float pz,
                                  float radius, float opacity) {
  using namespace exact_record;
  SetupResult out;
  const double* m = c.rotation64;
  const double r = radius;
  const double bx = px - c.eye64[0], by = py - c.eye64[1], bz = pz - c.eye64[2];
  const double qx = m[0] * bx + m[1] * by + m[2] * bz, qy = m[3] * bx + m[4] * by + m[5] * bz;
  const double qz = m[6] * bx + m[7] * by + m[8] * bz;
  const double t = sqrt64(bx * bx + by * by + bz * bz);
  const double distance = orthogonal ? qz : t;
  const double near = distance - r;
  const double inverse_z = orthogonal ? 1.0 : 1.0 / qz;
  const double u = qx * inverse_z, v = qy * inverse_z;
  const double x = u * c.scale_x + c.centre_x, y = v * c.scale_y + c.centre_y;
  Interval64 ex, ey;
  if (orthogonal) {
    ex = {qx - r, qx + r};
    ey = {qy - r, qy + r};
  } else {
    ex = exact_limits(qx, qz, r);
    ey = exact_limits(qy, qz, r);
  }
  int x0, x1, y0, y1;
  pixel_range(ex.low * c.scale_x + c.centre_x, ex.high * c.scale_x + c.centre_x, c.width, &x0, &x1);
  pixel_range(ey.low * c.scale_y + c.centre_y, ey.high * c.scale_y + c.centre_y, c.height, &y0, &y1);
  const bool visible = (near >= c.z_min64) & (near <= c.z_max64) & (qz >= 1e-6 * t) & (x0 < x1) & (y0 < y1);
  out.candidates = {static_cast<uint16_t>(visible ? x0 : 0), static_cast<uint16_t>(visible ? x1 : 0),
                    static_cast<uint16_t>(visible ? y0 : 0), static_cast<uint16_t>(visible ? y1 : 0)};
  out.area = 1.0f;
  out.wide = true;
  out.visible = visible;
  out.near = static_cast<float>(near);

  const double slope = opacity * (1.0 / (s.gamma64 * (c.z_max64 - c.z_min64)));
  const double exponent = (c.z_max64 - distance) * slope;
  const double x_high = __builtin_floor(x + 0.5), y_high = __builtin_floor(y + 0.5);
  const double high = __builtin_floor(exponent + 0.5);
  // Hit iff the chord is shorter than the radius: t - sqrt(t^2 - p^2) < r^2 / (2 t) for the perpendicular distance p.
  // (p / r)^2 is the scale times the square of the offset across the ray, in pixels (exact.h). The limit is a
  // little wider than float's rounding error requires; the closeness decides.
  const double pixels = r * c.scale_x, ratio = r / distance;
  const double scale = (orthogonal ? 1.0 : qz * qz) / (pixels * pixels);
  const double limit = (orthogonal ? 1.0 : 1.0 - 0.25 * ratio * ratio) * (1.0 + 2e-6);
  const float scale_high = static_cast<float>(scale);
  out.record[kXHigh] = static_cast<float>(x_high);
  out.record[kXLow] = static_cast<float>(x - x_high);
  out.record[kYHigh] = static_cast<float>(y_high);
  out.record[kYLow] = static_cast<float>(y - y_high);
  out.record[kMaxSquare] = static_cast<float>(limit * (pixels * inverse_z) * (pixels * inverse_z));
  out.record[kSlope] = static_cast<float>(slope * r);
  out.record[kDistance] = static_cast<float>(distance);
  out.record[kRatio] = static_cast<float>(ratio);
  out.record[kHigh] = static_cast<float>(high);
  out.record[kLow] = static_cast<float>(exponent - high);
  out.record[kScaleLow] = static_cast<float>(scale - static_cast<double>(scale_high));
  out.record[kOpacity] = opacity;
  out.record[kScale] = scale_high;
  return out;
}

LG_END
