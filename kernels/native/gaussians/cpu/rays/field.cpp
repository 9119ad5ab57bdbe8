#include "gaussians/cpu/rays/field.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "gaussians/cpu/images.h"
#include "gaussians/math/sensor/project.h"
#include "gaussians/math/sensor/unproject.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

constexpr float kEverywhere = 1e30f;

struct Beam {
  double axis[3], cosine, sine, centre[3], radius;
};

double dot3(const double* a, const double* b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
double distance(const double* a, const double* b) {
  const double d[3] = {a[0] - b[0], a[1] - b[1], a[2] - b[2]};
  return std::sqrt(dot3(d, d));
}

void store_beam(const Beam& b, float* to, int lane) {
  const double values[beam::kFields] = {b.axis[0],   b.axis[1],   b.axis[2],   b.cosine, b.sine,
                                        b.centre[0], b.centre[1], b.centre[2], b.radius};
  for (int f = 0; f < beam::kFields; ++f) to[f * kLanes + lane] = static_cast<float>(values[f]);
}
Beam load_beam(const float* from, int lane) {
  double v[beam::kFields];
  for (int f = 0; f < beam::kFields; ++f) v[f] = static_cast<double>(from[f * kLanes + lane]);
  return {{v[0], v[1], v[2]}, v[3], v[4], {v[5], v[6], v[7]}, v[8]};
}

Beam empty_beam() { return {{0, 0, 1}, 1, 0, {0, 0, 0}, -kEverywhere}; }
Beam full_beam() { return {{0, 0, 1}, 1, 0, {0, 0, 0}, kEverywhere}; }

// A beam that holds others.
Beam joined(const Beam* beams, int count) {
  Beam to = empty_beam();
  double axis[3] = {}, centre[3] = {};
  int used = 0;
  for (int i = 0; i < count; ++i) {
    if (beams[i].radius >= kEverywhere) return full_beam();
    if (beams[i].radius <= -kEverywhere) continue;
    ++used;
    for (int k = 0; k < 3; ++k) {
      axis[k] += beams[i].axis[k];
      centre[k] += beams[i].centre[k];
    }
  }
  if (used == 0) return to;
  const double length = std::sqrt(dot3(axis, axis));
  if (length < 0.05 * used) return full_beam();
  for (int k = 0; k < 3; ++k) {
    to.axis[k] = axis[k] / length;
    to.centre[k] = centre[k] / used;
  }
  double sine = 0.0, radius = 0.0;
  for (int i = 0; i < count; ++i) {
    const Beam& b = beams[i];
    if (b.radius <= -kEverywhere) continue;
    const double c = dot3(to.axis, b.axis), x = to.axis[1] * b.axis[2] - to.axis[2] * b.axis[1],
                 y = to.axis[2] * b.axis[0] - to.axis[0] * b.axis[2],
                 z = to.axis[0] * b.axis[1] - to.axis[1] * b.axis[0], s = std::sqrt(x * x + y * y + z * z);
    if (c * b.cosine - s * b.sine < 0.05) return full_beam();
    sine = std::max(sine, s * b.cosine + c * b.sine);
    radius = std::max(radius, distance(to.centre, b.centre) + b.radius);
  }
  to.sine = std::min(1.0, sine * 1.00001 + 1e-6);
  to.cosine = std::sqrt(1.0 - to.sine * to.sine);
  to.radius = radius * 1.00001 + 1e-6 * std::sqrt(dot3(to.centre, to.centre));
  return to;
}

// Sixteen rays.
struct Rays {
  Triple<Pack> direction, origin;
};

Beam beam_of(const Rays& rays) {
  const Triple<Pack>& d = rays.direction;
  const MaskPack there = dot(d, d) > Pack(0.5f);
  if (!any(there)) return empty_beam();
  const double count = static_cast<double>(sum(zero_unless(there, Pack(1.0f))));
  const double total[3] = {static_cast<double>(sum(d.x)), static_cast<double>(sum(d.y)), static_cast<double>(sum(d.z))};
  const double length = std::sqrt(dot3(total, total));
  if (length < 0.2 * count) return full_beam();
  const Triple<Pack>& o = rays.origin;
  const auto mean = [&](Pack a) { return static_cast<double>(sum(zero_unless(there, a))) / count; };
  Beam b = {{total[0] / length, total[1] / length, total[2] / length}, 1, 0, {mean(o.x), mean(o.y), mean(o.z)}, 0};
  const auto packed = [](const double* v) {
    return Triple<Pack>{Pack(static_cast<float>(v[0])), Pack(static_cast<float>(v[1])), Pack(static_cast<float>(v[2]))};
  };
  const Triple<Pack> axis = packed(b.axis), centre = packed(b.centre), apart = cross(axis, d);
  if (any((dot(axis, d) < Pack(0.1f)) & there)) return full_beam();
  const Triple<Pack> off = {o.x - centre.x, o.y - centre.y, o.z - centre.z};
  const auto largest = [&](Pack a) { return -static_cast<double>(lowest(-zero_unless(there, a))); };
  b.sine = std::min(1.0, std::sqrt(largest(dot(apart, apart))) * 1.00001 + 2e-6);
  b.cosine = std::sqrt(1.0 - b.sine * b.sine);
  b.radius = std::sqrt(largest(dot(off, off))) * 1.00001 + 1e-6 * std::sqrt(dot3(b.centre, b.centre));
  return b;
}

// From the camera's frame at a time to that at the start.
LG_INLINE Rays to_start(const Sensor& s, const Clock& clock, const Pair<Pack64>* pixels,
                        const CameraRay<Pack64>* rays) {
  Rays to;
  for (int part = 0; part < kParts64; ++part) {
    Triple<Pack64> d = rays[part].direction, o = rays[part].origin;
    if (is_rolling(s)) {
      const Instant<Pack64> at = instant_at(s, clock.time(pixels[part]));
      const Triple<Pack64> t = triple_of<Pack64>(s.translation), m = triple_of<Pack64>(s.motion);
      const Triple<Pack64> from = {o.x - t.x - at.time * m.x, o.y - t.y - at.time * m.y, o.z - t.z - at.time * m.z};
      o = turned(s, -at.sine, at.cosine, from) + t;
      d = turned(s, -at.sine, at.cosine, d);
    }
    narrow(d.x, part, to.direction.x);
    narrow(d.y, part, to.direction.y);
    narrow(d.z, part, to.direction.z);
    narrow(o.x, part, to.origin.x);
    narrow(o.y, part, to.origin.y);
    narrow(o.z, part, to.origin.z);
  }
  return to;
}

// The rays of a part of sixteen pixels from (x, y) on.
template <class Lens>
CameraRay<Pack64> rays_of_part(const View& view, int number, const Scene& scene, int x, int y, int part,
                               const Pair<Pack64>& pixels) {
  if constexpr (std::is_same_v<Lens, SpinningLidar>) {
    const Pack64 zero = Pack64(0.0);
    const Pair<Pack64> angles = return_angles(view, lidar_table(view, number, scene), x, y, part);
    return {{zero, zero, zero}, direction_at(angles), everywhere(zero)};
  } else {
    return ray_of_pixel<Lens>(scene.sensors[number], pixels);
  }
}

template <class Lens>
Rays rays_of_block(const View& view, int number, const Scene& scene, int x, int y) {
  const Sensor& s = scene.sensors[number];
  const Clock clock(view, s);
  Pair<Pack64> pixels[kParts64];
  CameraRay<Pack64> rays[kParts64];
  for (int part = 0; part < kParts64; ++part) {
    pixels[part] = {widen(lane_x() + Pack(static_cast<float>(x) + 0.5f), part),
                    widen(lane_y() + Pack(static_cast<float>(y) + 0.5f), part)};
    rays[part] = rays_of_part<Lens>(view, number, scene, x, y, part, pixels[part]);
    const auto on_film = (pixels[part].x < Pack64(view.width)) & (pixels[part].y < Pack64(view.height));
    rays[part].direction = masked(on_film, rays[part].direction);
  }
  return to_start(s, clock, pixels, rays);
}

// Those given by the caller, in the world.
Rays given_rays(const View& view, int number, const Sensor& s, const float* given, int x, int y) {
  alignas(64) float lanes[6][kLanes] = {};
  for (int i = 0; i < kLanes; ++i) {
    const int px = x + i % 4, py = y + i / 4;
    if (px >= view.width || py >= view.height) continue;
    const float* ray = given + ((static_cast<int64_t>(number) * view.height + py) * view.width + px) * 6;
    double o[3], d[3], length = 0.0;
    for (int k = 0; k < 3; ++k) {
      o[k] = s.translation[k];
      d[k] = 0.0;
      for (int j = 0; j < 3; ++j) {
        o[k] += s.rotation[3 * k + j] * static_cast<double>(ray[j]);
        d[k] += s.rotation[3 * k + j] * static_cast<double>(ray[3 + j]);
      }
      length += d[k] * d[k];
    }
    length = std::sqrt(length);
    for (int k = 0; k < 3; ++k) {
      lanes[k][i] = length > 0.0 ? static_cast<float>(d[k] / length) : 0.0f;
      lanes[3 + k][i] = static_cast<float>(o[k]);
    }
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
    const Rays rays = rays_at(left + b % kBlocksX * 4, top + b / kBlocksX * 4);
    store_rays(field, rays, field.rays + (static_cast<int64_t>(tile) * kBlocks + b) * field.block_floats);
    store_beam(beam_of(rays), beams + b / kLanes * kBeamFloats, b % kLanes);
  }
}

// The beams of windows of 4 x 4 of what `columns` x `rows` others hold; child(number) is one of these.
template <class Child>
void join_windows(int columns, int rows, const Child& child, float* sixteens) {
  const int across = (columns + kWindowSize - 1) >> kWindowBits, down = (rows + kWindowSize - 1) >> kWindowBits;
  for (int y = 0; y < down * kWindowSize; ++y) {
    for (int x = 0; x < across * kWindowSize; ++x) {
      const Beam b = x < columns && y < rows ? child(y * columns + x) : empty_beam();
      const int window = (y >> kWindowBits) * across + (x >> kWindowBits);
      store_beam(b, sixteens + static_cast<int64_t>(window) * kBeamFloats,
                 (y % kWindowSize) * kWindowSize + x % kWindowSize);
    }
  }
}

Beam joined_sixteen(const float* beams, int64_t first, int packs) {
  Beam all[2 * kLanes];
  for (int i = 0; i < packs * kLanes; ++i) {
    all[i] = load_beam(beams + (first * packs + i / kLanes) * kBeamFloats, i % kLanes);
  }
  return joined(all, packs * kLanes);
}

}  // namespace

RayField ray_field(ViewState& state, const Scene& scene, int view) {
  RayField f;
  const Sensor& s = scene.sensors[view];
  f.one_origin = scene.rays == nullptr && !is_rolling(s) && s.lens != SensorLens::orthographic;
  f.block_floats = (f.one_origin ? 3 : 6) * kLanes;
  f.windows_x = (state.tiles_x + kWindowSize - 1) >> kWindowBits;
  f.windows_y = (state.tiles_y + kWindowSize - 1) >> kWindowBits;
  f.groups_x = (f.windows_x + kWindowSize - 1) >> kWindowBits;
  f.groups_y = (f.windows_y + kWindowSize - 1) >> kWindowBits;
  const std::size_t tiles = static_cast<std::size_t>(state.tiles_x) * state.tiles_y;
  const std::size_t windows = static_cast<std::size_t>(f.windows_x) * f.windows_y;
  const std::size_t groups = static_cast<std::size_t>(f.groups_x) * f.groups_y;
  f.rays = state.rays.ensure<float>(tiles * kBlocks * f.block_floats);
  f.blocks = state.beams.ensure<float>((2 * tiles + windows + groups + f.group_packs()) * kBeamFloats);
  f.tiles = f.blocks + 2 * tiles * kBeamFloats;
  f.windows = f.tiles + windows * kBeamFloats;
  f.groups = f.windows + groups * kBeamFloats;
  return f;
}

void make_rays(const View* views, int view, const Scene& scene, ViewState& state) {
  const RayField f = ray_field(state, scene, view);
  const Sensor& s = scene.sensors[view];
  const View& v = views[view];
  for_parts(state.tiles_y, [&](int y) {
    for (int x = 0; x < state.tiles_x; ++x) {
      const int tile = y * state.tiles_x + x, left = x * kTileWidth, top = y * kTileHeight;
      if (scene.rays != nullptr) {
        fill_tile(f, tile, left, top, [&](int px, int py) { return given_rays(v, view, s, scene.rays, px, py); });
      } else {
        with_any_sensor_lens(s.lens, [&](auto lens) {
          fill_tile(f, tile, left, top,
                    [&](int px, int py) { return rays_of_block<decltype(lens)>(v, view, scene, px, py); });
        });
      }
    }
  });
  join_windows(state.tiles_x, state.tiles_y, [&](int i) { return joined_sixteen(f.blocks, i, 2); }, f.tiles);
  join_windows(f.windows_x, f.windows_y, [&](int i) { return joined_sixteen(f.tiles, i, 1); }, f.windows);
  for (int i = 0; i < f.group_packs() * kLanes; ++i) {
    const Beam b = i < f.groups_x * f.groups_y ? joined_sixteen(f.windows, i, 1) : empty_beam();
    store_beam(b, f.groups + i / kLanes * kBeamFloats, i % kLanes);
  }
}

LG_END
