#include "gaussians/cpu/rays/pinholes.h"

#include <cmath>

LG_BEGIN_ENGINE(gaussians)
namespace {

// A pinhole covers only rays at most this far from the middle of their part: cosine.
constexpr float kSmallestCosine = 0.3f;
// Beyond this margin a pinhole does not approximate the camera: pixels.
constexpr float kLargestMargin = 8.0f;
// Margin for rounding, including the ellipses': pixels.
constexpr float kRounding = 0.02f;

// A square of tiles within the image.
struct Part {
  const RayField& field;
  int tiles_x, x0, x1, y0, y1;

  // Calls visit(directions, which of them exist, x, y) for each block, with pixels relative to the first pixel.
  template <class Visit>
  void each_block(const Visit& visit) const {
    for (int ty = y0; ty < y1; ++ty) {
      for (int tx = x0; tx < x1; ++tx) {
        for (int b = 0; b < kBlocks; ++b) {
          const float* rays = field.block(ty * tiles_x + tx, b);
          const Triple<Pack> d = {Pack::load(rays), Pack::load(rays + kLanes), Pack::load(rays + 2 * kLanes)};
          const int x = (tx - x0) * kTileWidth + b % kBlocksX * 4, y = (ty - y0) * kTileHeight + b / kBlocksX * 4;
          visit(d, dot(d, d) > Pack(0.5f), lane_x() + Pack(static_cast<float>(x)),
                lane_y() + Pack(static_cast<float>(y)));
        }
      }
    }
  }
};

Triple<double> middle(const Part& part) {
  Triple<Pack> sums = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  part.each_block([&](const Triple<Pack>& d, MaskPack, Pack, Pack) { sums = sums + d; });
  return {static_cast<double>(sum(sums.x)), static_cast<double>(sum(sums.y)), static_cast<double>(sum(sums.z))};
}

Triple<Pack> packs_of(const Triple<double>& v) {
  return {Pack(static_cast<float>(v.x)), Pack(static_cast<float>(v.y)), Pack(static_cast<float>(v.z))};
}

// A least-squares fit of pixels as an affine function of (u, v), the rays' places on a plane across the axis.
struct Fit {
  Triple<double> axis, right, down;
  // Sums of 1, u, v, u u, u v, v v, x, x u, x v, y, y u, y v.
  double sums[12];
  bool possible;

  explicit Fit(const Part& part, const Triple<double>& along) : axis(along), possible(true) {
    const Triple<double> aside = std::abs(axis.x) < 0.7 ? Triple<double>{1.0, 0.0, 0.0} : Triple<double>{0.0, 1.0, 0.0};
    right = cross(aside, axis);
    right = scaled(right, 1.0 / sqrt(dot(right, right)));
    down = cross(axis, right);
    const Triple<Pack> a = packs_of(axis), r = packs_of(right), b = packs_of(down);
    Pack total[12];
    for (Pack& t : total) t = Pack(0.0f);
    part.each_block([&](const Triple<Pack>& d, MaskPack there, Pack x, Pack y) {
      const Pack depth = dot(a, d);
      if (any((depth < Pack(kSmallestCosine)) & there)) possible = false;
      const Pack one = zero_unless(there, Pack(1.0f)), inverse = one / select(there, depth, Pack(1.0f));
      const Pack u = dot(r, d) * inverse, v = dot(b, d) * inverse;
      const Pack terms[12] = {one, u, v, u * u, u * v, v * v, x * one, x * u, x * v, y * one, y * u, y * v};
      for (int i = 0; i < 12; ++i) total[i] = total[i] + terms[i];
    });
    for (int i = 0; i < 12; ++i) sums[i] = static_cast<double>(sum(total[i]));
  }

  // The row of the matrix for the pixel coordinate whose sums begin at `first`; 0 if the rays lie on a line.
  Triple<double> row(int first) const {
    const double n = sums[0], u = sums[1] / n, v = sums[2] / n, at = sums[first] / n;
    const double uu = sums[3] / n - u * u, uv = sums[4] / n - u * v, vv = sums[5] / n - v * v;
    const double tu = sums[first + 1] / n - at * u, tv = sums[first + 2] / n - at * v;
    const double determinant = uu * vv - uv * uv;
    if (!(determinant > 1e-6 * uu * vv)) return {0.0, 0.0, 0.0};
    const double du = (tu * vv - tv * uv) / determinant, dv = (tv * uu - tu * uv) / determinant;
    return scaled(right, du) + scaled(down, dv) + scaled(axis, at - du * u - dv * v);
  }
};

// The largest distance between a ray's pixel and where the pinhole sees the ray, pixels.
float deviation(const Part& part, const float* matrix) {
  const Matrix<Pack> m = {{Pack(matrix[0]), Pack(matrix[1]), Pack(matrix[2])},
                          {Pack(matrix[3]), Pack(matrix[4]), Pack(matrix[5])},
                          {Pack(matrix[6]), Pack(matrix[7]), Pack(matrix[8])}};
  Pack most = Pack(0.0f);
  part.each_block([&](const Triple<Pack>& d, MaskPack there, Pack x, Pack y) {
    const Triple<Pack> seen = m * d;
    const Pack inverse = Pack(1.0f) / select(there, seen.z, Pack(1.0f));
    most = max(most, zero_unless(there, max(abs(fma(seen.x, inverse, -x)), abs(fma(seen.y, inverse, -y)))));
  });
  return -lowest(-most);
}

void fit_pinhole(const Part& part, float* to) {
  to[pinhole::kMargin] = -1.0f;
  Triple<double> axis = middle(part);
  const double length = sqrt(dot(axis, axis));
  if (!(length > 1.0)) return;
  const Fit fit(part, scaled(axis, 1.0 / length));
  if (!fit.possible) return;
  const Triple<double> rows[3] = {fit.row(6), fit.row(9), fit.axis};
  for (int i = 0; i < 3; ++i) {
    if (!(dot(rows[i], rows[i]) > 0.0)) return;
    to[3 * i] = static_cast<float>(rows[i].x);
    to[3 * i + 1] = static_cast<float>(rows[i].y);
    to[3 * i + 2] = static_cast<float>(rows[i].z);
  }
  const float margin = 1.01f * deviation(part, to) + kRounding;
  if (margin < kLargestMargin) to[pinhole::kMargin] = margin;
}

}  // namespace

void make_pinholes(const RayField& field, int tiles_x, int tiles_y) {
  const auto end = [](int first, int edge, int limit) { return first + edge < limit ? first + edge : limit; };
  for_parts(field.windows_y, [&](int wy) {
    for (int wx = 0; wx < field.windows_x; ++wx) {
      const int x0 = wx << kWindowBits, y0 = wy << kWindowBits;
      const Part window = {field, tiles_x, x0, end(x0, kWindowSize, tiles_x), y0, end(y0, kWindowSize, tiles_y)};
      fit_pinhole(window, field.window_pinholes + (static_cast<int64_t>(wy) * field.windows_x + wx) * kLanes);
      for (int y = window.y0; y < window.y1; ++y) {
        for (int x = window.x0; x < window.x1; ++x) {
          fit_pinhole({field, tiles_x, x, x + 1, y, y + 1},
                      field.tile_pinholes + (static_cast<int64_t>(y) * tiles_x + x) * kLanes);
        }
      }
    }
  });
}

LG_END
