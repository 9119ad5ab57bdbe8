#include "gaussians/cpu/rays/backward.h"

#include <type_traits>

#include "gaussians/math/sensor/rays.h"

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

// Writes the gradients of the angles of a lidar's returns, given the gradients of their directions.
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
  const Pair<Pack64> pixel = {widen(lane_x() + Pack(static_cast<float>(b.x) + 0.5f), part),
                              widen(lane_y() + Pack(static_cast<float>(b.y) + 0.5f), part)};
  const Pack64 zero = Pack64(0.0);
  RayGradient<Pack64> ray = {{zero, zero, zero}, part_of(b.rays, part)};
  if (!b.one_origin) ray.origin = part_of(b.rays + 3 * kLanes, part);
  const PixelSink add{sums, dot(ray.direction, ray.direction) > Pack64(0.5)};
  const RayGradient<Pack64> v_start = {part_of(b.v_origin, part), part_of(b.v_direction, part)};
  const RayGradient<Pack64> v = to_start_backward(b.view, b.sensor(), pixel, ray, v_start, add);
  if constexpr (std::is_same_v<Lens, SpinningLidar>) {
    if (lidar_angles != nullptr) write_angles(b, part, v.direction, lidar_angles);
  } else {
    ray_of_pixel_backward<Lens>(b.sensor(), pixel, v, add);
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
    const auto lane = [&](const float* packs) {
      return Triple<double>{packs[i], packs[kLanes + i], packs[2 * kLanes + i]};
    };
    given_ray_backward(b.sensor(), {lane(b.v_origin), lane(b.v_direction)}, given + pixel, to + pixel);
  }
}

LG_END
