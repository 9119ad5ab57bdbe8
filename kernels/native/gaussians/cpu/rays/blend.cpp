// Blends the Gaussians of each tile along the rays of its pixels, nearest first (sensors spec section 3).
#include <atomic>

#include "gaussians/cpu/feature_sums.h"
#include "gaussians/cpu/finish.h"
#include "gaussians/cpu/rays/stages.h"
#include "gaussians/cpu/rays/tile.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// The number of visits between checks whether a pixel has ended.
constexpr int kStride = 4;

struct Limits {
  Pack alpha_max, transmittance_min;
};

// The state of a block between batches, before the features. `kLimit` is log2 of the smallest alpha that counts,
// unreachable if a pixel has ended or has no ray.
enum BlockField { kLimit, kTransmittance, kContributors, kSums };

// Features that depend on more than the Gaussian.
struct Geometry {
  bool distance, normals;
  Pack hit, x, y, z;

  LG_INLINE void load(const float* from) {
    if (distance) hit = Pack::load(from);
    const float* next = from + (distance ? kLanes : 0);
    if (!normals) return;
    x = Pack::load(next);
    y = Pack::load(next + kLanes);
    z = Pack::load(next + 2 * kLanes);
  }
  LG_INLINE void store(float* to) const {
    if (distance) hit.store(to);
    float* next = to + (distance ? kLanes : 0);
    if (!normals) return;
    x.store(next);
    y.store(next + kLanes);
    z.store(next + 2 * kLanes);
  }
};

// A block's rays, and the times when they are exposed.
struct BlockRays {
  const RayField& field;
  const float* rays;
  int x, y;

  // The rays as seen by a Gaussian, whose slice may move, given their origins and directions.
  template <bool kOneOrigin>
  LG_INLINE UnitRay<Pack> at(const float* record, const Triple<Pack>& origin, const Triple<Pack>& direction) const {
    if constexpr (!kOneOrigin) {
      const SliceMotion<float>* motion = motion_of(field, record);
      if (__builtin_expect(motion != nullptr, 0)) {
        const UnitRay<Pack> seen = unmoved_block(*motion, field.times.block(x, y), rays);
        return unit_ray<false>(record, seen.origin, seen.direction);
      }
    }
    return unit_ray<kOneOrigin>(record, origin, direction);
  }
  // The third axis of the Gaussian.
  template <bool kOneOrigin>
  LG_INLINE Triple<Pack> axis(const float* record) const {
    const Triple<float> third = third_axis(record);
    const Triple<Pack> packs = {Pack(third.x), Pack(third.y), Pack(third.z)};
    const SliceMotion<float>* motion = kOneOrigin ? nullptr : motion_of(field, record);
    return motion == nullptr ? packs : turned_by(*motion, half_turn(*motion, field.times.block(x, y)), packs);
  }
};

// Blends a block's list.
template <int kFeatures, bool kOneOrigin, bool kGeometry>
LG_INLINE void draw_list(const RayBatch& batch, const ViewData& data, const uint32_t* entries, const BlockRays& from,
                         int block, const Limits& limits, float* state, uint32_t* masks) {
  const float* rays = from.rays;
  const Triple<Pack> direction = {Pack::load(rays), Pack::load(rays + kLanes), Pack::load(rays + 2 * kLanes)};
  Triple<Pack> origin = direction;
  if constexpr (!kOneOrigin) {
    origin = {Pack::load(rays + 3 * kLanes), Pack::load(rays + 4 * kLanes), Pack::load(rays + 5 * kLanes)};
  }
  Pack limit = Pack::load(state + kLimit * kLanes), through = Pack::load(state + kTransmittance * kLanes);
  Pack contributors = Pack::load(state + kContributors * kLanes);
  const int total = data.features.total();
  Sums<kFeatures> sums;
  if constexpr (kFeatures > 0) {
    sums.load(state + kSums * kLanes);
  } else {
    sums.at = state + kSums * kLanes;
    sums.count = total;
  }
  float* more = state + (kSums + total) * kLanes;
  Geometry geometry = {data.features.hit_distance, data.features.normals, through, through, through, through};
  if constexpr (kGeometry) geometry.load(more);
  const uint8_t* list = batch.lists[block];
  int length = batch.lengths[block];
  const Pack zero = Pack(0.0f);
  int i = 0, careful = 0;
  while (i < length) {
    if constexpr (kFeatures > 0 && !kGeometry) {
      // Without branches, as long as no pixel ends.
      if (i >= careful && i + kStride <= length) {
        const Pack through_before = through;
        const Sums<kFeatures> sums_before = sums;
        unsigned drawn[kStride];
#pragma GCC unroll 4
        for (int k = 0; k < kStride; ++k) {
          const float* r = batch.records[list[i + k]];
          const Closest<Pack> at = closest_of(from.at<kOneOrigin>(r, origin, direction));
          const Pack power = log2_alpha(at, r[ray_record::kLog2Opacity]);
          const MaskPack live = (power >= limit) & (at.back <= zero);
          drawn[k] = any(live) ? 1u : 0u;
          const Pack alpha = zero_unless(live, min(exp2_bounded(power), limits.alpha_max)), weight = alpha * through;
          through = fnma(alpha, through, through);
          sums.add(weight, data.features_of(entries[list[i + k]]));
        }
        // Transmittance only decreases: if no pixel has ended by now, none ended before.
        if (!any(through <= limits.transmittance_min)) {
          for (int k = 0; k < kStride; ++k) masks[list[i + k]] |= drawn[k] << block;
          i += kStride;
          continue;
        }
        through = through_before;
        sums = sums_before;
        careful = i + kStride;
      }
    }
    const int number = list[i++];
    const float* r = batch.records[number];
    const UnitRay<Pack> ray = from.at<kOneOrigin>(r, origin, direction);
    const Closest<Pack> at = closest_of(ray);
    const Pack power = log2_alpha(at, r[ray_record::kLog2Opacity]);
    MaskPack live = (power >= limit) & (at.back <= zero);
    if (!any(live)) continue;
    Pack alpha = zero_unless(live, min(exp2_bounded(power), limits.alpha_max));
    Pack after = fnma(alpha, through, through);
    const MaskPack ends = after <= limits.transmittance_min;
    if (__builtin_expect(any(ends), 0)) {
      limit = select(ends, Pack(kNowhere), limit);
      live = live & ~ends;
      alpha = zero_unless(live, alpha);
      after = fnma(alpha, through, through);
      if (!any(limit < Pack(0.5f * kNowhere))) length = i;
    }
    const Pack weight = alpha * through;
    through = after;
    if constexpr (kFeatures == 0) contributors = add_where(live, contributors, Pack(1.0f));
    masks[number] |= 1u << block;
    sums.add(weight, data.features_of(entries[number]));
    if constexpr (kGeometry) {
      if (geometry.distance) geometry.hit = fma(weight, distance_to(at), geometry.hit);
      if (geometry.normals) {
        const Triple<Pack> axis = from.axis<kOneOrigin>(r);
        const Pack facing = select(ray.direction.z > zero, -weight, weight);
        geometry.x = fma(facing, axis.x, geometry.x);
        geometry.y = fma(facing, axis.y, geometry.y);
        geometry.z = fma(facing, axis.z, geometry.z);
      }
    }
  }
  limit.store(state + kLimit * kLanes);
  through.store(state + kTransmittance * kLanes);
  contributors.store(state + kContributors * kLanes);
  if constexpr (kFeatures > 0) sums.store(state + kSums * kLanes);
  if constexpr (kGeometry) geometry.store(more);
}

struct Drawing {
  const View& view;
  const Sensor& sensor;
  const Settings& settings;
  const ViewData& data;
  const RayField& field;
  const TileImages& images;
};

void clear_block(float* state, int floats, const float* rays, float log2_alpha_min) {
  const Triple<Pack> d = {Pack::load(rays), Pack::load(rays + kLanes), Pack::load(rays + 2 * kLanes)};
  select(dot(d, d) > Pack(0.5f), Pack(log2_alpha_min), Pack(kNowhere)).store(state + kLimit * kLanes);
  Pack(1.0f).store(state + kTransmittance * kLanes);
  for (int f = kContributors; f < floats / kLanes; ++f) Pack(0.0f).store(state + f * kLanes);
}

LG_INLINE bool is_done(const float* state) { return !any(Pack::load(state + kLimit * kLanes) < Pack(0.5f * kNowhere)); }

// Turns normals from the frame of the camera at the start to the world.
void turn_normals(const Sensor& s, float* normals) {
  const auto at = [&](int k) { return Pack::load(normals + k * kLanes); };
  const Triple<Pack> n = {at(0), at(1), at(2)};
  for (int k = 0; k < 3; ++k) {
    const auto r = [&](int row) { return Pack(static_cast<float>(s.rotation[3 * row + k])); };
    fma(r(0), n.x, fma(r(1), n.y, r(2) * n.z)).store(normals + k * kLanes);
  }
}

template <int kFeatures, bool kOneOrigin, bool kGeometry>
void draw_tile(const Drawing& d, int tile_x, int tile_y, RayBatch& batch, float* states, int state_floats) {
  const View& view = d.view;
  const int left = tile_x * kTileWidth, top = tile_y * kTileHeight, tile = tile_y * d.data.tiles_x + tile_x;
  const Limits limits = {Pack(d.settings.alpha_max), Pack(d.settings.transmittance_min)};
  const float log2_alpha_min = log2_positive(d.settings.alpha_min);
  // Rectangles do not cut Gaussians of lidars.
  const bool rectangles = d.settings.rectangles && d.sensor.lens != SensorLens::lidar;
  for (int b = 0; b < kBlocks; ++b)
    clear_block(states + b * state_floats, state_floats, d.field.block(tile, b), log2_alpha_min);
  const uint32_t end = d.data.tile_starts[tile + 1];
  bool open = true;
  for (uint32_t begin = d.data.tile_starts[tile]; begin < end; begin += kBatch) {
    const int count = static_cast<int>(end - begin < kBatch ? end - begin : kBatch);
    const uint32_t* entries = d.data.entries + begin;
    uint32_t* masks = d.data.masks + begin;
    for (int i = 0; i < count; ++i) masks[i] = 0;
    if (!open) continue;
    if (is_stopping()) return;
    fill_ray_batch(batch, d.data, d.field, tile, left, top, rectangles, entries, count);
    open = false;
    for (int b = 0; b < kBlocks; ++b) {
      float* state = states + b * state_floats;
      if (is_done(state)) continue;
      open = true;
      if (batch.lengths[b] > 0) {
        const BlockRays rays{d.field, d.field.block(tile, b), left + b % kBlocksX * 4, top + b / kBlocksX * 4};
        draw_list<kFeatures, kOneOrigin, kGeometry>(batch, d.data, entries, rays, b, limits, state, masks);
      }
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    if (left + b % kBlocksX * 4 >= view.width || top + b / kBlocksX * 4 >= view.height) continue;
    float* state = states + b * state_floats;
    const Features& f = d.data.features;
    if (f.normals) turn_normals(d.sensor, state + (kSums + f.total() + f.hit_distance) * kLanes);
    write_block(d.images.tile(), b % kBlocksX * 4, b / kBlocksX * 4, Pack::load(state + kTransmittance * kLanes),
                Pack::load(state + kContributors * kLanes), state + kSums * kLanes);
  }
  d.images.write(left, top);
}

using DrawTile = void (*)(const Drawing&, int, int, RayBatch&, float*, int);

template <int kFeatures>
DrawTile choose(const Features& f, bool one_origin) {
  if (f.hit_distance || f.normals) {
    return one_origin ? &draw_tile<kFeatures, true, true> : &draw_tile<kFeatures, false, true>;
  }
  return one_origin ? &draw_tile<kFeatures, true, false> : &draw_tile<kFeatures, false, false>;
}

}  // namespace

void draw_rays(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
               const ViewData& data, const RayField& field, Workspace& w) {
  const int channels = data.features.colors, features = data.features.total();
  const float* background =
      scene.background != nullptr ? scene.background + static_cast<int64_t>(view) * channels : nullptr;
  const ImageTarget images{outputs, views[view], view, data.features, background};
  const DrawTile draw = features == 3 && outputs.contributors == nullptr ? choose<3>(data.features, field.one_origin)
                                                                         : choose<0>(data.features, field.one_origin);
  const int state_floats = (kSums + features + kGeometryFields) * kLanes;
  const int total = data.tiles_x * data.tiles_y, threads = thread_count();
  const int parts = total < threads ? total : threads;
  const std::size_t batch_floats = sizeof(RayBatch) / sizeof(float);
  const std::size_t states_floats = static_cast<std::size_t>(kBlocks) * state_floats;
  const std::size_t part_floats = batch_floats + states_floats + TileImages::floats(channels);
  float* memory = w.scratch.ensure<float>(part_floats * parts);
  std::atomic<int> next{0};
  for_parts(parts, [&](int p) {
    float* own = memory + p * part_floats;
    RayBatch& batch = *reinterpret_cast<RayBatch*>(own);
    float* states = own + batch_floats;
    const TileImages tile_images(images, states + states_floats);
    const Drawing drawing{views[view], scene.sensors[view], settings, data, field, tile_images};
    for (int tile = next++; tile < total && !is_stopping(); tile = next++) {
      draw(drawing, tile % data.tiles_x, tile / data.tiles_x, batch, states, state_floats);
    }
  });
}

LG_END
