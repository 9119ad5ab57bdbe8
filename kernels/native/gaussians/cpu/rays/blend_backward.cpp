// Differentiates the blending along rays, Gaussian by Gaussian, nearest first (sensors spec section 3.1), as
// cpu/blend_backward.cpp does on the film.
#include <cstring>

#include "gaussians/cpu/bands.h"
#include "gaussians/cpu/rays/backward.h"
#include "gaussians/cpu/rays/tile.h"
#include "gaussians/cpu/upstream.h"
#include "gaussians/math/blend.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

struct Limits {
  Pack alpha_max, transmittance_min;
  bool dropping;  // gsplat: whether distances, normals and rays have no gradient where alpha is clamped.
};

// A block's memory: the fields of cpu/upstream.h, with the smallest log2 alpha that counts (unreachable if a pixel has
// ended) in place of x; then these fields.
enum RayBlockField {
  kUpHit,
  kUpNormal,
  kVDirection = kUpNormal + 3,
  kVOrigin = kVDirection + 3,
  kTime = kVOrigin + 3,
  kRayFields
};
constexpr int kUpLimit = kUpX;

struct Block {
  const float* rays;
  float* common;  // See cpu/upstream.h.
  float* own;     // See RayBlockField.
};

// Sums over sixteen pixels, in registers; fields in the order of ray_row, then up to three features.
template <int kFeatures>
struct RaySums : RayRow<Pack> {
  Pack a, b, c;
  LG_INLINE void clear() { xx = xy = xz = yy = yz = zz = ox = oy = oz = one = nx = ny = nz = a = b = c = Pack(0.0f); }
  LG_INLINE void reduce(float* row) const {
    const Pack fields[kRecordFloats] = {xx, xy, xz, yy, yz, zz, ox, oy, oz, one, nx, ny, nz, a, b, c};
    add_sums_of_16(fields, row);
  }
};

// Packs per moving slice: its sums over a tile (see kSliceMotionSums), then whether it has any.
inline constexpr int kSlicePacks = kSliceMotionSums + 1;

struct Visitor {
  const SliceMotion<float>* motion;  // The motion of the Gaussian's slice; null if it does not move.
  float* slice;                      // Sums [kSlicePacks, 16]; null if not requested.
  const float* record;
  const float* features;
  int total;
  float* feature_sums;  // [features, 16], if features are not in registers.
};

// Adds to the three packs from `to` on.
LG_INLINE void add_to(float* to, const Triple<Pack>& v) {
  (Pack::load(to) + v.x).store(to);
  (Pack::load(to + kLanes) + v.y).store(to + kLanes);
  (Pack::load(to + 2 * kLanes) + v.z).store(to + 2 * kLanes);
}

// Adds the gradients of the features, given the gradients of the pixels.
template <int kFeatures>
LG_INLINE void add_features(const Visitor& g, Pack weight, const float* v, RaySums<kFeatures>& sums) {
  if constexpr (kFeatures > 0) {
    sums.a = fma(weight, Pack::load(v), sums.a);
    if constexpr (kFeatures > 1) sums.b = fma(weight, Pack::load(v + kLanes), sums.b);
    if constexpr (kFeatures > 2) sums.c = fma(weight, Pack::load(v + 2 * kLanes), sums.c);
  } else {
    for (int f = 0; f < g.total; ++f) {
      float* to = g.feature_sums + f * kLanes;
      fma(weight, Pack::load(v + f * kLanes), Pack::load(to)).store(to);
    }
  }
}

LG_INLINE Triple<Pack> load_triple(const float* from) {
  return {Pack::load(from), Pack::load(from + kLanes), Pack::load(from + 2 * kLanes)};
}

// The gradients of a block's rays, from the gradients of the rays as a moving slice sees them and of the normal.
LG_CALLED UnitRay<Pack> slice_backward(const Visitor& g, const Block& block, const UnitRay<Pack>& v,
                                       const Triple<Pack>& v_normal) {
  const Pack time = Pack::load(block.own + kTime * kLanes);
  const Triple<float> third = third_axis(g.record);
  const Triple<Pack> axis = {Pack(third.x), Pack(third.y), Pack(third.z)};
  if (g.slice != nullptr && g.slice[kSliceMotionSums * kLanes] == 0.0f) {
    std::memset(g.slice, 0, sizeof(float) * kLanes * kSliceMotionSums);
    g.slice[kSliceMotionSums * kLanes] = 1.0f;
  }
  const auto add = [&](int index, Pack value) {
    if (g.slice == nullptr) return;
    float* to = g.slice + index * kLanes;
    (Pack::load(to) + value).store(to);
  };
  return unmoved_backward(*g.motion, time, unmoved_block(*g.motion, time, block.rays), v, axis, v_normal, add);
}

template <int kFeatures, bool kOneOrigin, bool kGeometry, bool kRays>
LG_INLINE void visit(const Visitor& g, const Limits& limits, const Block& block, RaySums<kFeatures>& sums) {
  UnitRay<Pack> seen = {load_triple(block.rays), load_triple(block.rays)};
  if constexpr (!kOneOrigin) {
    if (__builtin_expect(g.motion != nullptr, 0)) {
      seen = unmoved_block(*g.motion, Pack::load(block.own + kTime * kLanes), block.rays);
    } else {
      seen.origin = load_triple(block.rays + 3 * kLanes);
    }
  }
  const UnitRay<Pack> ray = unit_ray<kOneOrigin>(g.record, seen.origin, seen.direction);
  const Closest<Pack> at = closest_of(ray);
  const Pack power = log2_alpha(at, g.record[ray_record::kLog2Opacity]), zero = Pack(0.0f);
  float* common = block.common;
  const Pack limit = Pack::load(common + kUpLimit * kLanes);
  MaskPack live = (power >= limit) & (at.back <= zero);
  if (!any(live)) return;
  const Pack raw = exp2_bounded(power), before = Pack::load(common + kUpTransmittance * kLanes);
  Pack alpha = zero_unless(live, min(raw, limits.alpha_max)), after = fnma(alpha, before, before);
  const MaskPack ends = after <= limits.transmittance_min;
  if (__builtin_expect(any(ends), 0)) {
    select(ends, Pack(kNowhere), limit).store(common + kUpLimit * kLanes);
    live = live & ~ends;
    alpha = zero_unless(live, alpha);
    after = fnma(alpha, before, before);
  }
  const float* v = common + kUpFeatures * kLanes;
  Pack own = zero;
  for (int f = 0; f < (kFeatures > 0 ? kFeatures : g.total); ++f) {
    own = fma(Pack(g.features[f]), Pack::load(v + f * kLanes), own);
  }
  const Pack t = distance_to(at);
  Triple<Pack> v_normal = {zero, zero, zero};
  Pack v_hit = zero;
  if constexpr (kGeometry) {
    v_hit = Pack::load(block.own + kUpHit * kLanes);
    const Triple<float> third = third_axis(g.record);
    const MaskPack facing = ray.direction.z > zero;
    Triple<Pack> up = load_triple(block.own + kUpNormal * kLanes);
    if (!kOneOrigin && g.motion != nullptr) {
      up = turned_back(*g.motion, half_turn(*g.motion, Pack::load(block.own + kTime * kLanes)), up);
    }
    v_normal = {select(facing, -up.x, up.x), select(facing, -up.y, up.y), select(facing, -up.z, up.z)};
    own = fma(t, v_hit, own);
    own = fma(v_normal.x, Pack(third.x), own);
    own = fma(v_normal.y, Pack(third.y), own);
    own = fma(v_normal.z, Pack(third.z), own);
  }
  const Pack weight = alpha * before, rest = fnma(weight, own, Pack::load(common + kUpRest * kLanes));
  // Minus the gradient of alpha.
  const Pack against = fnma(before, own, rest * quick_inverse(Pack(1.0f) - alpha));
  after.store(common + kUpTransmittance * kLanes);
  rest.store(common + kUpRest * kLanes);
  const MaskPack free = live & (raw <= limits.alpha_max);
  const Pack share = limits.dropping ? zero_unless(free, weight) : weight;
  const UnitRay<Pack> v_ray =
      add_to_row<kGeometry>(ray, at, {zero_unless(free, raw * against), share, v_hit, v_normal}, sums);
  if constexpr (kRays || !kOneOrigin) {
    if (!kRays && g.slice == nullptr) return add_features<kFeatures>(g, weight, v, sums);
    UnitRay<Pack> v_start = from_unit(g.record, v_ray);
    if (!kOneOrigin && g.motion != nullptr) v_start = slice_backward(g, block, v_start, scaled(v_normal, share));
    if (!kRays) return add_features<kFeatures>(g, weight, v, sums);
    add_to(block.own + kVDirection * kLanes, v_start.direction);
    add_to(block.own + kVOrigin * kLanes, v_start.origin);
  }
  add_features<kFeatures>(g, weight, v, sums);
}

struct Differentiation {
  const ViewData& data;
  const RowData& rows;
  const Bands& bands;
  const UpstreamSource& source;
  const RayField& field;
  const Sensor& sensor;
  Limits limits;
  float log2_alpha_min;
};

// Loads the upstream gradients of a block: those of cpu/upstream.h, and those of distances and normals.
void load_ray_block(const Differentiation& d, int x, int y, const Block& block, double* background) {
  load_block(d.source, x, y, block.common, background);
  const auto direction = [&](int k) { return Pack::load(block.rays + k * kLanes); };
  const Pack length = fma(direction(0), direction(0), fma(direction(1), direction(1), direction(2) * direction(2)));
  select(length > Pack(0.5f), Pack(d.log2_alpha_min), Pack(kNowhere)).store(block.common + kUpLimit * kLanes);
  for (int f = 0; f < kRayFields; ++f) Pack(0.0f).store(block.own + f * kLanes);
  d.field.times.block(x, y).store(block.own + kTime * kLanes);
  const UpstreamSource& s = d.source;
  if (x >= s.view.width || y >= s.view.height) return;
  const BlockPixels pixels(s.view, s.number, x, y);
  Pack rest = Pack::load(block.common + kUpRest * kLanes);
  if (s.features.hit_distance) {
    const Pack hit = load_plane(pixels, s.up.hit_distance), left = load_plane(pixels, s.up.transmittance);
    Pack v_hit = load_plane(pixels, s.up.d_hit_distance);
    if (s.up.d_expected_hit_distance != nullptr) {
      const auto v = expected_depth_backward(hit, left, load_plane(pixels, s.up.d_expected_hit_distance));
      v_hit = v_hit + v.depth;
      rest = fma(left, v.transmittance, rest);
    }
    load_feature(v_hit, hit, block.own + kUpHit * kLanes, rest);
  }
  if (s.features.normals && s.up.d_normals != nullptr) {
    const Colors3 v = load_colors_3(pixels, s.up.d_normals), n = load_colors_3(pixels, s.up.normals);
    rest = fma(v.r, n.r, fma(v.g, n.g, fma(v.b, n.b, rest)));
    for (int k = 0; k < 3; ++k) {
      const auto r = [&](int column) { return Pack(static_cast<float>(d.sensor.rotation[3 * k + column])); };
      fma(r(0), v.r, fma(r(1), v.g, r(2) * v.b)).store(block.own + (kUpNormal + k) * kLanes);
    }
  }
  rest.store(block.common + kUpRest * kLanes);
}

struct TileMemory {
  float* blocks;
  int common_floats, block_floats;
  float* feature_sums;
  float* slices;  // [moving slices, kSlicePacks, 16]; null if not requested.
  LG_INLINE Block block(const Differentiation& d, int tile, int b) const {
    float* memory = blocks + b * block_floats;
    return {d.field.block(tile, b), memory, memory + common_floats};
  }
};

template <int kFeatures, bool kOneOrigin, bool kGeometry, bool kRays>
void differentiate_tile(const Differentiation& d, int band, int tile, const TileMemory& memory, double* background) {
  const int left = tile % d.data.tiles_x * kTileWidth, top = tile / d.data.tiles_x * kTileHeight;
  for (int b = 0; b < kBlocks; ++b) {
    load_ray_block(d, left + b % kBlocksX * 4, top + b / kBlocksX * 4, memory.block(d, tile, b), background);
  }
  const int total = d.data.features.total();
  const uint32_t end = d.data.tile_starts[tile + 1];
  constexpr uint32_t kAhead = 6, kBetween = 512;
  for (uint32_t i = d.data.tile_starts[tile]; i < end; ++i) {
    if (i % kBetween == 0 && is_stopping()) return;
    if (i + kAhead < end) {
      const int64_t ahead = d.data.entries[i + kAhead];
      __builtin_prefetch(d.data.records + ahead * kRecordFloats);
      __builtin_prefetch(d.data.features_of(d.data.entries[i + kAhead]));
      __builtin_prefetch(d.rows.row(ahead), 1);
    }
    uint32_t mask = d.data.masks[i];
    if (mask == 0) continue;
    const uint32_t id = d.data.entries[i];
    const float* record = d.data.records + static_cast<int64_t>(id) * kRecordFloats;
    const SliceMotion<float>* motion = kOneOrigin ? nullptr : motion_of(d.field, record);
    const bool counts = motion != nullptr && memory.slices != nullptr;
    const Visitor g = {motion, counts ? memory.slices + (motion - d.field.motions) * kSlicePacks * kLanes : nullptr,
                       record, d.data.features_of(id),
                       total,  memory.feature_sums};
    if constexpr (kFeatures == 0)
      std::memset(g.feature_sums, 0, sizeof(float) * kLanes * static_cast<std::size_t>(total));
    RaySums<kFeatures> sums;
    sums.clear();
    for (; mask != 0; mask &= mask - 1) {
      visit<kFeatures, kOneOrigin, kGeometry, kRays>(g, d.limits, memory.block(d, tile, __builtin_ctz(mask)), sums);
    }
    const RowTarget to = row_target(d.bands, d.rows, d.data, band, id);
    if (*to.touched == 0) {
      *to.touched = 1;
      Pack(0.0f).store(to.fields);
      if (to.features != nullptr) std::memset(to.features, 0, sizeof(float) * static_cast<std::size_t>(total));
    }
    sums.reduce(to.fields);
    if constexpr (kFeatures == 0) {
      float* features = to.features != nullptr ? to.features : to.fields + ray_row::kUsed;
      for (int f = 0; f < total; ++f) features[f] += sum(Pack::load(g.feature_sums + f * kLanes));
    }
  }
}

// The sums of the moving slices: totals [slices, kSliceMotionSums], then those of each row of tiles.
struct SliceRows {
  std::size_t width;
  double* sums;

  SliceRows(ViewState& state, int slices) : width(static_cast<std::size_t>(slices) * kSliceMotionSums) {
    const std::size_t count = width * static_cast<std::size_t>(state.tiles_y + 1);
    sums = state.slice_gradients.ensure<double>(count);
    for (std::size_t i = 0; i < count; ++i) sums[i] = 0.0;
  }
  double* row(int tile_row) const { return sums + static_cast<std::size_t>(tile_row + 1) * width; }
  void total(int rows) const {
    for (int y = 0; y < rows; ++y) {
      for (std::size_t i = 0; i < width; ++i) sums[i] += row(y)[i];
    }
  }
};

void clear_slices(float* packs, int slices) {
  if (packs == nullptr) return;
  for (int g = 0; g < slices; ++g) packs[(g * kSlicePacks + kSliceMotionSums) * kLanes] = 0.0f;
}
void add_slices(const float* packs, int slices, double* to) {
  if (packs == nullptr) return;
  for (int g = 0; g < slices; ++g) {
    const float* own = packs + g * kSlicePacks * kLanes;
    if (own[kSliceMotionSums * kLanes] == 0.0f) continue;
    for (int i = 0; i < kSliceMotionSums; ++i) {
      to[g * kSliceMotionSums + i] += static_cast<double>(sum(Pack::load(own + i * kLanes)));
    }
  }
}

using DifferentiateTile = void (*)(const Differentiation&, int, int, const TileMemory&, double*);

template <int kFeatures, bool kGeometry, bool kRays>
DifferentiateTile choose(bool one_origin) {
  return one_origin ? &differentiate_tile<kFeatures, true, kGeometry, kRays>
                    : &differentiate_tile<kFeatures, false, kGeometry, kRays>;
}
template <int kFeatures>
DifferentiateTile choose(const Features& f, bool one_origin, bool rays) {
  if (f.hit_distance || f.normals) {
    return rays ? choose<kFeatures, true, true>(one_origin) : choose<kFeatures, true, false>(one_origin);
  }
  return rays ? choose<kFeatures, false, true>(one_origin) : choose<kFeatures, false, false>(one_origin);
}

}  // namespace

void blend_rays_backward(const View* views, int view, const Settings& settings, const Scene& scene, const Upstream& up,
                         const Gradients& gradients, Pass& pass, Workspace& w) {
  StageClock clock(w.milliseconds);
  ViewState& state = pass.view(view);
  const ViewData data = view_data(state, scene.count);
  const RayField field = ray_field(state, scene, views[view], view);
  const RowData rows = row_data(state);
  std::memset(rows.touched, 0, static_cast<std::size_t>(data.places));
  const Bands bands = make_bands(data, w);
  const int total = data.features.total(), channels = data.features.colors;
  const int common_floats = (kUpFeatures + total) * kLanes, block_floats = common_floats + kRayFields * kLanes;
  const bool of_slices = gradients.poses != nullptr && scene.moving_slices > 0;
  const std::size_t slice_floats = of_slices ? static_cast<std::size_t>(scene.moving_slices) * kSlicePacks * kLanes : 0;
  const std::size_t part_floats =
      static_cast<std::size_t>(kBlocks) * block_floats + (total + 1) * kLanes + slice_floats;
  float* memory = w.scratch.ensure<float>(part_floats * bands.count);
  double* backgrounds = w.sums.ensure<double>(static_cast<std::size_t>(channels + 8) * bands.count);
  const UpstreamSource source{views[view], view, settings, up, data.features};
  const bool frozen = settings.frozen_projection != 0;
  const bool of_sensor = gradients.sensors != nullptr && !frozen && scene.rays == nullptr;
  const bool of_rays = gradients.rays != nullptr && scene.rays != nullptr;
  const Sensor& sensor = scene.sensors[view];
  const Differentiation d{data,
                          rows,
                          bands,
                          source,
                          field,
                          sensor,
                          {Pack(settings.alpha_max), Pack(settings.transmittance_min), frozen},
                          log2_positive(settings.alpha_min)};
  const bool with_rays = of_sensor || of_rays;
  const DifferentiateTile run = total == 3 ? choose<3>(data.features, field.one_origin, with_rays)
                                           : choose<0>(data.features, field.one_origin, with_rays);
  double* sums = clear_ray_sums(state);
  const SliceRows slices(state, of_slices ? scene.moving_slices : 0);
  for_parts(bands.count, [&](int band) {
    float* own = memory + band * part_floats;
    float* feature_sums = own + static_cast<std::size_t>(kBlocks) * block_floats;
    const TileMemory tile_memory{own, common_floats, block_floats, feature_sums,
                                 of_slices ? feature_sums + (total + 1) * kLanes : nullptr};
    double* background = backgrounds + static_cast<std::size_t>(band) * (channels + 8);
    for (int c = 0; c < channels; ++c) background[c] = 0.0;
    const int end = bands.first[band + 1] * data.tiles_x;
    for (int tile = bands.first[band] * data.tiles_x; tile < end && !is_stopping(); ++tile) {
      clear_slices(tile_memory.slices, scene.moving_slices);
      run(d, band, tile, tile_memory, gradients.background != nullptr ? background : nullptr);
      add_slices(tile_memory.slices, scene.moving_slices, slices.row(tile / data.tiles_x));
      if (!with_rays) continue;
      for (int b = 0; b < kBlocks; ++b) {
        const Block block = tile_memory.block(d, tile, b);
        const RayBlock at{views[view],
                          view,
                          scene,
                          tile % data.tiles_x * kTileWidth + b % kBlocksX * 4,
                          tile / data.tiles_x * kTileHeight + b / kBlocksX * 4,
                          block.rays,
                          field.one_origin,
                          block.own + kVDirection * kLanes,
                          block.own + kVOrigin * kLanes};
        double* row_sums = sums + (1 + tile / data.tiles_x) * static_cast<int64_t>(kRaySums);
        if (of_sensor) add_ray_sums(at, row_sums, gradients.lidar_angles);
        if (of_rays) write_ray_gradients(at, scene.rays, gradients.rays);
      }
    }
  });
  merge_bands(bands, rows, data);
  total_ray_sums(state, sums);
  slices.total(state.tiles_y);
  for (int c = 0; gradients.background != nullptr && c < channels; ++c) {
    double sum = 0.0;
    for (int band = 0; band < bands.count; ++band)
      sum += backgrounds[static_cast<std::size_t>(band) * (channels + 8) + c];
    gradients.background[static_cast<int64_t>(view) * channels + c] = static_cast<float>(sum);
  }
  clock.stage(kBackBlendStage);
}

LG_END
