#include "gaussians/cpu/rays/field.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "gaussians/cpu/rays/pinholes.h"
#include "gaussians/cpu/sensor.h"
#include "gaussians/math/sensor/rays.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

void store_beam(const Beam<double>& b, float* to, int lane) {
  const double values[beam::kFields] = {b.axis.x,   b.axis.y,   b.axis.z, b.cosine, b.sine, b.centre.x,
                                        b.centre.y, b.centre.z, b.radius, b.begin,  b.end};
  for (int f = 0; f < beam::kFields; ++f) to[f * kLanes + lane] = static_cast<float>(values[f]);
}
Beam<double> load_beam(const float* from, int lane) {
  double v[beam::kFields];
  for (int f = 0; f < beam::kFields; ++f) v[f] = static_cast<double>(from[f * kLanes + lane]);
  return {{v[0], v[1], v[2]}, v[3], v[4], {v[5], v[6], v[7]}, v[8], v[9], v[10]};
}

// Sixteen rays.
struct Rays {
  Triple<Pack> direction, origin;
};

Beam<double> beam_of(const Rays& rays, Pack times, bool one_origin) {
  const Triple<Pack>& d = rays.direction;
  const MaskPack there = dot(d, d) > Pack(0.5f);
  if (!any(there)) return empty_beam<double>();
  const double count = static_cast<double>(sum(zero_unless(there, Pack(1.0f))));
  const Triple<double> total = {static_cast<double>(sum(d.x)), static_cast<double>(sum(d.y)),
                                static_cast<double>(sum(d.z))};
  const double length = sqrt(dot(total, total));
  if (length < 0.2 * count) return full_beam<double>();
  Beam<double> b{};
  b.axis = scaled(total, 1.0 / length);
  b.begin = static_cast<double>(lowest(times));
  b.end = -static_cast<double>(lowest(-times));
  const auto packed = [](const Triple<double>& v) {
    return Triple<Pack>{Pack(static_cast<float>(v.x)), Pack(static_cast<float>(v.y)), Pack(static_cast<float>(v.z))};
  };
  const Triple<Pack> axis = packed(b.axis), apart = cross(axis, d);
  if (any((dot(axis, d) < Pack(0.1f)) & there)) return full_beam<double>();
  const auto largest = [&](Pack a) { return -static_cast<double>(lowest(-zero_unless(there, a))); };
  b.sine = std::min(1.0, std::sqrt(largest(dot(apart, apart))) * 1.00001 + 2e-6);
  b.cosine = std::sqrt(1.0 - b.sine * b.sine);
  if (one_origin) return b;
  const Triple<Pack>& o = rays.origin;
  const auto mean = [&](Pack a) { return static_cast<double>(sum(zero_unless(there, a))) / count; };
  b.centre = {mean(o.x), mean(o.y), mean(o.z)};
  const Triple<Pack> centre = packed(b.centre), off = {o.x - centre.x, o.y - centre.y, o.z - centre.z};
  b.radius = std::sqrt(largest(dot(off, off))) * 1.00001 + 1e-6 * sqrt(dot(b.centre, b.centre));
  return b;
}

// The rays of a part of sixteen pixels from (x, y) on.
template <class Lens>
CameraRay<Pack64> rays_of_part(const View& view, int number, const Scene& scene, int x, int y, int part,
                               const Pair<Pack64>& pixels, Neighbour<Pack64>& near) {
  if constexpr (std::is_same_v<Lens, SpinningLidar>) {
    const Pack64 zero = Pack64(0.0);
    const Pair<Pack64> angles = return_angles(view, lidar_table(view, number, scene), x, y, part);
    return {{zero, zero, zero}, direction_at(angles), everywhere(zero)};
  } else {
    return ray_of_pixel<Lens>(scene.sensors[number], pixels, near);
  }
}

template <class Lens>
Rays rays_of_block(const View& view, int number, const Scene& scene, int x, int y, Neighbour<Pack64>& near) {
  Rays to;
  for (int part = 0; part < kParts64; ++part) {
    const Pair<Pack64> pixel = {widen(lane_x() + Pack(static_cast<float>(x) + 0.5f), part),
                                widen(lane_y() + Pack(static_cast<float>(y) + 0.5f), part)};
    const CameraRay<Pack64> ray =
        to_start(view, scene.sensors[number], pixel, rays_of_part<Lens>(view, number, scene, x, y, part, pixel, near));
    const auto on_film = (pixel.x < Pack64(view.width)) & (pixel.y < Pack64(view.height));
    put(masked<Pack64>(on_film, ray.direction), part, to.direction);
    put(ray.origin, part, to.origin);
  }
  return to;
}

// Rays given by the caller, in the world.
Rays given_rays(const View& view, int number, const Sensor& s, const float* given, int x, int y) {
  alignas(64) float lanes[6][kLanes] = {};
  for (int i = 0; i < kLanes; ++i) {
    const int px = x + i % 4, py = y + i / 4;
    if (px >= view.width || py >= view.height) continue;
    const RayGradient<double> ray =
        given_ray(s, given + ((static_cast<int64_t>(number) * view.height + py) * view.width + px) * 6);
    const double values[6] = {ray.direction.x, ray.direction.y, ray.direction.z,
                              ray.origin.x,    ray.origin.y,    ray.origin.z};
    for (int k = 0; k < 6; ++k) lanes[k][i] = static_cast<float>(values[k]);
  }
  const auto pack = [&](int k) { return Pack::load(lanes[k]); };
  return {{pack(0), pack(1), pack(2)}, {pack(3), pack(4), pack(5)}};
}

void store_rays(const RayField& field, const Rays& rays, float* to) {
  const Pack values[6] = {rays.direction.x, rays.direction.y, rays.direction.z,
                          rays.origin.x,    rays.origin.y,    rays.origin.z};
  for (int k = 0; k < field.block_floats / kLanes; ++k) values[k].store(to + k * kLanes);
}

template <class MakeRays>
void fill_tile(const RayField& field, int tile, int left, int top, const MakeRays& rays_at) {
  float* beams = field.blocks + static_cast<int64_t>(tile) * 2 * kBeamFloats;
  for (int b = 0; b < kBlocks; ++b) {
    const int x = left + b % kBlocksX * 4, y = top + b / kBlocksX * 4;
    const Rays rays = rays_at(x, y);
    store_rays(field, rays, field.rays + (static_cast<int64_t>(tile) * kBlocks + b) * field.block_floats);
    const Pack times = field.times.block(x, y);
    store_beam(beam_of(rays, times, field.one_origin), beams + b / kLanes * kBeamFloats, b % kLanes);
  }
}

// Joins a grid of `columns` x `rows` beams into beams of windows of 4 x 4; child(number) is a beam of the grid.
template <class Child>
void join_windows(int columns, int rows, const Child& child, float* sixteens) {
  const int across = (columns + kWindowSize - 1) >> kWindowBits, down = (rows + kWindowSize - 1) >> kWindowBits;
  for (int y = 0; y < down * kWindowSize; ++y) {
    for (int x = 0; x < across * kWindowSize; ++x) {
      const Beam<double> b = x < columns && y < rows ? child(y * columns + x) : empty_beam<double>();
      const int window = (y >> kWindowBits) * across + (x >> kWindowBits);
      store_beam(b, sixteens + static_cast<int64_t>(window) * kBeamFloats,
                 (y % kWindowSize) * kWindowSize + x % kWindowSize);
    }
  }
}

PixelTimes pixel_times(const View& view, const Sensor& s) {
  if (!is_rolling(s)) return {0.0f, 0.0f, false};
  const Clock clock(view, s);
  const auto at = [&](double pixel) { return static_cast<float>(clock.time(Pair<double>{pixel, pixel})); };
  return {at(0.5), static_cast<float>(clock.slope), clock.by_rows};
}

Beam<double> joined_sixteen(const float* beams, int64_t first, int packs) {
  Beam<double> all[2 * kLanes];
  for (int i = 0; i < packs * kLanes; ++i) {
    all[i] = load_beam(beams + (first * packs + i / kLanes) * kBeamFloats, i % kLanes);
  }
  return joined(all, packs * kLanes);
}

}  // namespace

RayField ray_field(ViewState& state, const Scene& scene, const View& view, int number) {
  RayField f;
  const Sensor& s = scene.sensors[number];
  f.one_origin = has_one_origin(scene, s);
  f.block_floats = (f.one_origin ? 3 : 6) * kLanes;
  f.windows_x = (state.tiles_x + kWindowSize - 1) >> kWindowBits;
  f.windows_y = (state.tiles_y + kWindowSize - 1) >> kWindowBits;
  f.groups_x = (f.windows_x + kWindowSize - 1) >> kWindowBits;
  f.groups_y = (f.windows_y + kWindowSize - 1) >> kWindowBits;
  const std::size_t tiles = static_cast<std::size_t>(state.tiles_x) * state.tiles_y;
  const std::size_t windows = static_cast<std::size_t>(f.windows_x) * f.windows_y;
  const std::size_t groups = static_cast<std::size_t>(f.groups_x) * f.groups_y;
  f.rays = state.rays.ensure<float>(tiles * kBlocks * f.block_floats);
  const std::size_t beams = (2 * tiles + windows + groups + f.group_packs()) * kBeamFloats;
  f.blocks = state.beams.ensure<float>(beams + (f.one_origin ? tiles + windows : 0) * kLanes);
  f.tiles = f.blocks + 2 * tiles * kBeamFloats;
  f.windows = f.tiles + windows * kBeamFloats;
  f.groups = f.windows + groups * kBeamFloats;
  f.tile_pinholes = f.blocks + beams;
  f.window_pinholes = f.tile_pinholes + tiles * kLanes;
  f.times = pixel_times(view, s);
  f.motions = state.motions.ensure<SliceMotion<float>>(static_cast<std::size_t>(scene.moving_slices));
  return f;
}

void make_rays(const View* views, int view, const Scene& scene, ViewState& state) {
  const Sensor& s = scene.sensors[view];
  const View& v = views[view];
  const RayField f = ray_field(state, scene, v, view);
  for (int g = 0; g < scene.slices; ++g) {
    const SlicePose& slice = scene.slice_poses[g];
    if (slice.moving >= 0) f.motions[slice.moving] = ray_slice_motion(s, slice);
  }
  for_parts(state.tiles_y, [&](int y) {
    for (int x = 0; x < state.tiles_x; ++x) {
      const int tile = y * state.tiles_x + x, left = x * kTileWidth, top = y * kTileHeight;
      if (scene.rays != nullptr) {
        fill_tile(f, tile, left, top, [&](int px, int py) { return given_rays(v, view, s, scene.rays, px, py); });
      } else {
        with_any_sensor_lens(s.lens, [&](auto lens) {
          Neighbour<Pack64> near;
          fill_tile(f, tile, left, top,
                    [&](int px, int py) { return rays_of_block<decltype(lens)>(v, view, scene, px, py, near); });
        });
      }
    }
  });
  join_windows(state.tiles_x, state.tiles_y, [&](int i) { return joined_sixteen(f.blocks, i, 2); }, f.tiles);
  join_windows(f.windows_x, f.windows_y, [&](int i) { return joined_sixteen(f.tiles, i, 1); }, f.windows);
  for (int i = 0; i < f.group_packs() * kLanes; ++i) {
    const Beam<double> b = i < f.groups_x * f.groups_y ? joined_sixteen(f.windows, i, 1) : empty_beam<double>();
    store_beam(b, f.groups + i / kLanes * kBeamFloats, i % kLanes);
  }
  if (f.one_origin) make_pinholes(f, state.tiles_x, state.tiles_y);
}

LG_END
