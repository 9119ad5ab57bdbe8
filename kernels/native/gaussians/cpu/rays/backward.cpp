#include "gaussians/cpu/rays/backward.h"

#include <cmath>
#include <type_traits>

#include "gaussians/math/sensor/project.h"
#include "gaussians/math/sensor/unproject.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct PixelSink {
  double* to;
  MaskPack64 mask;
  LG_INLINE bool wanted() const { return true; }
  LG_INLINE void operator()(int index, Pack64 value) const { to[index] += sum(zero_unless(mask, value)); }
};

LG_INLINE Triple<Pack64> part_of(const float* packs, int part) {
  const auto at = [&](int k) { return widen(Pack::load(packs + k * kLanes), part); };
  return {at(0), at(1), at(2)};
}

// The gradients of the angles of a lidar's returns, given those of their directions.
void write_angles(const RayBlock& b, int part, const Triple<Pack64>& v_direction, float* to) {
  const Pair<Pack64> angles = return_angles(b.view, lidar_table(b.view, b.number, b.scene), b.x, b.y, part);
  const Pair<Pack64> v = direction_backward(angles, v_direction);
  for (int i = 0; i < kLanes64; ++i) {
    const int x = b.x + (part * kLanes64 + i) % 4, y = b.y + (part * kLanes64 + i) / 4;
    if (x >= b.view.width || y >= b.view.height) continue;
    float* at = to + ((static_cast<int64_t>(b.number) * b.view.height + y) * b.view.width + x) * 2;
    at[0] = static_cast<float>(v.x.v[i]);
    at[1] = static_cast<float>(v.y.v[i]);
  }
}

template <class Lens>
void add_part(const RayBlock& b, int part, double* sums, float* lidar_angles) {
  const Sensor& s = b.sensor();
  const Pair<Pack64> pixel = {widen(lane_x() + Pack(static_cast<float>(b.x) + 0.5f), part),
                              widen(lane_y() + Pack(static_cast<float>(b.y) + 0.5f), part)};
  const Triple<Pack64> direction = part_of(b.rays, part), v_direction = part_of(b.v_direction, part);
  const Triple<Pack64> v_origin = part_of(b.v_origin, part), t = triple_of<Pack64>(s.translation);
  const Pack64 zero = Pack64(0.0);
  Triple<Pack64> from_eye = {-t.x, -t.y, -t.z};
  if (!b.one_origin) from_eye = from_eye + part_of(b.rays + 3 * kLanes, part);
  const PixelSink add{sums, dot(direction, direction) > Pack64(0.5)};
  const Instant<Pack64> at =
      is_rolling(s) ? instant_at(s, Clock(b.view, s).time(pixel)) : Instant<Pack64>{zero, zero, Pack64(1.0)};
  const Triple<Pack64> spin = cross(v_origin, from_eye) + cross(v_direction, direction);
  RayGradient<Pack64> v = {v_origin, v_direction};
  if (is_rolling(s)) v = {turned(s, at.sine, at.cosine, v_origin), turned(s, at.sine, at.cosine, v_direction)};
  add_motion(s, at, spin, Triple<Pack64>{-v.origin.x, -v.origin.y, -v.origin.z}, add);
  if constexpr (std::is_same_v<Lens, SpinningLidar>) {
    if (lidar_angles != nullptr) write_angles(b, part, v.direction, lidar_angles);
  } else {
    ray_of_pixel_backward<Lens>(s, pixel, v, add);
  }
}

}  // namespace

double* clear_ray_sums(ViewState& state) {
  const std::size_t count = static_cast<std::size_t>(state.tiles_y + 1) * kRaySums;
  double* sums = state.ray_gradients.ensure<double>(count);
  for (std::size_t i = 0; i < count; ++i) sums[i] = 0.0;
  return sums;
}

void add_ray_sums(const RayBlock& block, double* sums, float* lidar_angles) {
  with_any_sensor_lens(block.sensor().lens, [&](auto lens) {
    for (int part = 0; part < kParts64; ++part) add_part<decltype(lens)>(block, part, sums, lidar_angles);
  });
}

void total_ray_sums(const ViewState& state, double* sums) {
  for (int row = 1; row <= state.tiles_y; ++row) {
    for (int i = 0; i < kRaySums; ++i) sums[i] += sums[static_cast<int64_t>(row) * kRaySums + i];
  }
}

void write_ray_gradients(const RayBlock& b, const float* given, float* to) {
  for (int i = 0; i < kLanes; ++i) {
    const int x = b.x + i % 4, y = b.y + i / 4;
    if (x >= b.view.width || y >= b.view.height) continue;
    const int64_t pixel = ((static_cast<int64_t>(b.number) * b.view.height + y) * b.view.width + x) * 6;
    double v_o[3], v_d[3], length = 0.0, along = 0.0;
    for (int k = 0; k < 3; ++k) {
      v_o[k] = v_d[k] = 0.0;
      for (int j = 0; j < 3; ++j) {
        const double r = b.sensor().rotation[3 * j + k];
        v_o[k] += r * static_cast<double>(b.v_origin[j * kLanes + i]);
        v_d[k] += r * static_cast<double>(b.v_direction[j * kLanes + i]);
      }
      const double d = static_cast<double>(given[pixel + 3 + k]);
      length += d * d;
      along += d * v_d[k];
    }
    // The length of the direction has no effect.
    for (int k = 0; k < 3; ++k) {
      const double d = static_cast<double>(given[pixel + 3 + k]);
      to[pixel + k] = static_cast<float>(v_o[k]);
      to[pixel + 3 + k] = static_cast<float>((v_d[k] - d * along / length) / std::sqrt(length));
    }
  }
}

LG_END
