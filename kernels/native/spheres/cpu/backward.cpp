// The backward pass on the CPU. Each thread takes a band of tile rows and, tile by tile, iterates over the tile's
// spheres: the sums of a sphere over the tile stay in registers. A sphere's row of sums belongs to the one band that
// contains it; only the few that overlap several bands get a row per band. It uses no atomics and is deterministic.
#include "common/threads.h"
#include "spheres/cpu/backward_compat.h"
#include "spheres/cpu/finish.h"
#include "spheres/cpu/pixels.h"

LG_BEGIN_ENGINE(spheres)
namespace {

struct PairArguments {
  const Camera& camera;
  const Settings& settings;
  const Scene& scene;
  const Upstream& up;
  const Prepared& prepared;
  const Rows& rows;
  CompatView compat;
  ExactView exact;

  LG_INLINE void prefetch(uint32_t id) const {
    __builtin_prefetch(prepared.records + static_cast<int64_t>(id) * kRecordFloats);
    __builtin_prefetch(prepared.rectangles + id);
    __builtin_prefetch(rows.rows + static_cast<std::size_t>(id) * rows.width, 1);
    __builtin_prefetch(rows.touched + id, 1);
  }
};

constexpr uint32_t kPrefetch = 12;

// Pixels of a block to which the sphere contributes.
template <bool kExact, bool kOrthogonal, int kTrack>
LG_INLINE uint32_t participants(const PairArguments& a, const TilePixels& pixels, float* block, const float* record,
                                uint32_t id, int place) {
  const auto ray = load_ray<kExact, kOrthogonal>(block);
  if constexpr (kExact) {
    const MaskPack looked = load_int(block + kLast * kLanes) > IntPack(place);
    return to_bits(exact_hit<Pack, kOrthogonal>(record, ray, a.exact) & looked);
  } else {
    // A long tracker is searched only where the sphere is hit at all.
    if (kTrack == 0 && !any(compat_hit<Pack, kOrthogonal>(record, ray))) return 0;
    const IntPack wanted = static_cast<int>(id);
    const float* ids = pixels.ids(block);
    MaskPack found = mask_from_bits(0);
    const int track = kTrack > 0 ? kTrack : pixels.track;
#pragma GCC unroll 8
    for (int t = 0; t < track; ++t) found = found | (load_int(ids + t * kLanes) == wanted);
    return to_bits(found);
  }
}

struct PairSums {
  Pack row[kRowFields];
  LG_INLINE PairSums() {
    for (Pack& sum : row) sum = Pack(0.0f);
  }
};

// Exact: the sum of G * c less that of G * I, over D.
template <int kChannels>
LG_INLINE Pack upstream_color(const PairArguments& a, const TilePixels& pixels, float* block, const float* record,
                              uint32_t id) {
  const int channels = kChannels > 0 ? kChannels : pixels.channels;
  Pack result = Pack::load(block + kUpstreamImage * kLanes);
#pragma GCC unroll 4
  for (int c = 0; c < channels; ++c) {
    result = fma(Pack::load(pixels.upstream(block) + c * kLanes), channel<kChannels>(record, a.scene, id, c), result);
  }
  return result;
}

// Compat: dL/dw, but for the pixel's factor.
template <int kChannels>
LG_INLINE Pack upstream_weight(const PairArguments& a, const TilePixels& pixels, float* block, const float* record,
                               uint32_t id, Pack denominator, Pack weight, Pack inverse_rest) {
  const int channels = kChannels > 0 ? kChannels : pixels.channels;
  Pack result = 0.0f;
#pragma GCC unroll 4
  for (int c = 0; c < channels; ++c) {
    result = result + compat_channel(Pack::load(pixels.upstream(block) + c * kLanes),
                                     channel<kChannels>(record, a.scene, id, c),
                                     Pack::load(pixels.image(block) + c * kLanes), denominator, weight, inverse_rest);
  }
  return result;
}

LG_INLINE void add_lanes(float* block, int field, MaskPack mask, Pack value) {
  add_where(mask, Pack::load(block + field * kLanes), value).store(block + field * kLanes);
}

// The pairs of one sphere and the pixels `mask` of a block. kPlain: no upstream gradients of depths, and none of
// opacities are wanted.
template <bool kExact, bool kOrthogonal, int kChannels, bool kPlain>
LG_INLINE void add_pairs(const PairArguments& a, const TilePixels& pixels, float* block, const float* record,
                         uint32_t id, uint32_t bits_of_mask, PairSums& sums, float* row) {
  const auto ray = load_ray<kExact, kOrthogonal>(block);
  const auto get = [&](int field) { return Pack::load(block + field * kLanes); };
  const Pack zero = 0.0f;
  MaskPack mask = mask_from_bits(bits_of_mask);
  Pack position[3], radius, opacity, share;
  if constexpr (kExact) {
    const ExactGeometry<Pack> g = exact_geometry<Pack, kOrthogonal>(record, ray, a.exact, mask);
    mask = mask & (g.closeness > zero);
    // The upstream gradients are already over D.
    const ExactPixel<Pack> pixel{get(kPixelMaximum), get(kPixelLow), Pack(1.0f), zero};
    Pack d_depth_map = zero;
    if (!kPlain && a.up.d_depth != nullptr) {
      const MaskPack closest = load_int(block + kClosest * kLanes) == IntPack(static_cast<int>(id));
      d_depth_map = select(closest, get(kUpstreamDepth), zero);
    }
    const ExactSums<Pack> pair = exact_sums<Pack, kOrthogonal>(
        record, ray, a.exact, g, pixel, upstream_color<kChannels>(a, pixels, block, record, id), d_depth_map);
    share = pair.share;
    opacity = pair.opacity;
    radius = pair.radius;
    position[0] = pair.x;
    position[1] = pair.y;
    position[2] = pair.z;
    add_lanes(block, kSum0, mask, pair.ray_x);
    add_lanes(block, kSum1, mask, pair.ray_y);
    add_lanes(block, kSum2, mask, pair.spread);
  } else {
    const CompatPixel<Pack> pixel{get(kPixelMaximum), get(kPixelDenominator), get(kInverse), get(kInverseSquare)};
    const auto toward = [&](Pack weight, Pack inverse_rest) {
      return upstream_weight<kChannels>(a, pixels, block, record, id, pixel.denominator, weight, inverse_rest);
    };
    const MaskPack wide = Pack(a.prepared.area[id]) > Pack(0.0f);
    const PairGradient<Pack> pair = compat_pair<Pack, kOrthogonal>(record, ray, a.compat, pixel, toward, wide);
    share = pair.share;
    opacity = pair.opacity;
    radius = pair.radius;
    position[0] = pair.x;
    position[1] = pair.y;
    position[2] = pair.z;
    if (a.rows.camera_weights != nullptr) {
      const Pack weight = a.rows.camera_weights[id];
      add_lanes(block, kSum0, mask, pair.ray_x * weight);
      add_lanes(block, kSum1, mask, pair.ray_y * weight);
      add_lanes(block, kSum2, mask, pair.ray_z * weight);
    }
  }
  for (int i = 0; i < 3; ++i) sums.row[i] = add_where(mask, sums.row[i], position[i]);
  sums.row[3] = add_where(mask, sums.row[3], radius);
  if constexpr (!kPlain) sums.row[4] = add_where(mask, sums.row[4], opacity);
  share = select(mask, share, zero);
  if constexpr (kChannels == 3) {
#pragma GCC unroll 3
    for (int c = 0; c < 3; ++c) {
      sums.row[5 + c] = fma(Pack::load(pixels.upstream(block) + c * kLanes), share, sums.row[5 + c]);
    }
  } else {
    for (int c = 0; c < pixels.channels; ++c) {
      row[5 + c] += sum(Pack::load(pixels.upstream(block) + c * kLanes) * share);
    }
  }
}

template <bool kExact, bool kOrthogonal, int kChannels, int kTrack, bool kPlain>
void backward_tile(const PairArguments& a, const TilePixels& pixels, BandRows& band, BackgroundSums& background,
                   int tile) {
  const int tile_x = tile % a.prepared.tiles_x, tile_y = tile / a.prepared.tiles_x;
  load_tile<kExact, kOrthogonal>(a.camera, a.settings, a.scene, a.up, pixels, tile_x * kTileWidth, tile_y * kTileHeight,
                                 background);
  const uint32_t begin = a.prepared.tile_starts[tile], end = a.prepared.tile_starts[tile + 1];
  const uint32_t* entries = a.prepared.entries;
  for (uint32_t e = begin; e < end; ++e) {
    // The spheres of a tile lie anywhere in memory.
    if (e + kPrefetch < end) a.prefetch(entries[e + kPrefetch]);
    const uint32_t id = entries[e];
    const float* record = a.prepared.records + static_cast<int64_t>(id) * kRecordFloats;
    const TileSpan span = tile_span(a.prepared.rectangles[id], tile_x, tile_y);
    uint32_t found[kBlocks];
    int count = 0, touched = 0;
    for (int by = span.by0; by < span.by1; ++by) {
      for (int bx = span.bx0; bx < span.bx1; ++bx) {
        const int b = by * kBlocksX + bx;
        const uint32_t mask = participants<kExact, kOrthogonal, kTrack>(a, pixels, pixels.block(b), record, id,
                                                                        static_cast<int>(e - begin)) &
                              block_mask(span.columns, span.rows, bx, by);
        found[count] = mask | static_cast<uint32_t>(b) << 16;
        count += mask != 0;
        touched += __builtin_popcount(mask);
      }
    }
    if (count == 0) continue;
    float* row = band.row(a.rows, a.prepared.rectangles[id], id, touched);
    PairSums sums;
    for (int i = 0; i < count; ++i) {
      add_pairs<kExact, kOrthogonal, kChannels, kPlain>(a, pixels, pixels.block(static_cast<int>(found[i] >> 16)),
                                                        record, id, found[i] & 0xffff, sums, row);
    }
    add_row(sums.row, row);
  }
}

// The sums that the pixels of a tile kept for the camera.
template <bool kExact, bool kOrthogonal>
void add_camera_sums(const Camera& camera, const TilePixels& pixels, int tile_x, int tile_y, double* camera_sums) {
  for (int b = 0; b < kBlocks; ++b) {
    const float* block = pixels.block(b);
    const auto get = [&](int field) { return Pack::load(block + field * kLanes); };
    const Pack x = lane_x() + Pack(static_cast<float>(tile_x * kTileWidth + b % kBlocksX * 4));
    const Pack y = lane_y() + Pack(static_cast<float>(tile_y * kTileHeight + b / kBlocksX * 4));
    const auto add = [&](int slot, Pack value) { camera_sums[slot] += static_cast<double>(sum(value)); };
    if constexpr (kExact) {
      if constexpr (kOrthogonal) {
        add(16, get(kSum0));
      } else {
        add(12, get(kSum0));
        add(13, get(kSum1));
        add(14, get(kSum0) * (x - Pack(static_cast<float>(camera.centre_x))));
        add(15, get(kSum1) * (y - Pack(static_cast<float>(camera.centre_y))));
      }
      add(18, get(kSum2));
    } else if constexpr (kOrthogonal) {
      add(12, get(kSum0));
    } else {
      const Pack ax = x + Pack(static_cast<float>(camera.border_x)), ay = y + Pack(static_cast<float>(camera.border_y));
      for (int i = 0; i < 3; ++i) {
        add(3 + i, get(kSum0 + i));
        add(6 + i, get(kSum0 + i) * ax);
        add(9 + i, get(kSum0 + i) * ay);
      }
    }
  }
}

template <bool kExact, bool kOrthogonal, int kChannels, int kTrack, bool kPlain>
void backward_band(const PairArguments& a, const Bands& bands, int part, int track, double* part_sums) {
  const int channels = a.scene.channels;
  float* memory = bands.scratch + static_cast<std::size_t>(part) * bands.scratch_floats;
  const TilePixels pixels{memory, pixel_floats(channels, track), channels, track};
  BandRows band(a.rows, bands, part);
  BackgroundSums background{part_sums + kCameraSums, 0.0, 0.0};
  for (int ty = bands.first[part]; ty < bands.first[part + 1]; ++ty) {
    for (int tx = 0; tx < a.prepared.tiles_x; ++tx) {
      backward_tile<kExact, kOrthogonal, kChannels, kTrack, kPlain>(a, pixels, band, background,
                                                                    ty * a.prepared.tiles_x + tx);
      add_camera_sums<kExact, kOrthogonal>(a.camera, pixels, tx, ty, part_sums);
    }
  }
  if constexpr (kExact) {
    // Sums of dL/de e: the pairs' are relative to M, and their terms in M sum to minus that of the background.
    const double pairs = part_sums[18];
    part_sums[17] = (pairs - background.exponent_m) * a.exact.inverse_range;
    part_sums[18] = -(pairs + background.exponent) / a.settings.gamma64;
  }
}

using BackwardBand = void (*)(const PairArguments&, const Bands&, int, int, double*);

template <bool kExact, bool kOrthogonal>
BackwardBand choose(int channels, int track, bool plain) {
  if (kExact) {
    if (channels == 3 && plain) return &backward_band<kExact, kOrthogonal, 3, 0, true>;
    return channels == 3 ? &backward_band<kExact, kOrthogonal, 3, 0, false>
                         : &backward_band<kExact, kOrthogonal, 0, 0, false>;
  }
  if (channels == 3 && track == 5) return &backward_band<kExact, kOrthogonal, 3, 5, false>;
  return &backward_band<kExact, kOrthogonal, 0, 0, false>;
}

}  // namespace

void backward(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& up,
              const Gradients& gradients, uint64_t before, Workspace& workspace) {
  if (!settings.exact) return backward_compat(camera, settings, scene, up, gradients, before, workspace);
  StageClock clock(workspace.milliseconds);
  // In compat only tracked spheres contribute: usually a fraction of all.
  if (!settings.exact) count_tracked(camera, settings, scene.count, up.info, gradients.touched, workspace);
  const bool reuse = settings.exact && before != 0 && before == workspace.prepared;
  const Prepared prepared =
      reuse ? prepared_before(camera, scene, workspace)
            : prepare(camera, settings, scene, settings.exact ? nullptr : gradients.touched, workspace, clock);
  const int track = settings.exact ? (up.d_depth != nullptr ? settings.n_track : 0) : settings.n_track;
  Bands bands = make_bands(prepared, thread_count(), kBlocks * pixel_floats(scene.channels, track), workspace);
  const Rows rows = make_rows(settings, scene, gradients, prepared, bands, workspace);
  const PairArguments arguments{
      camera, settings, scene, up, prepared, rows, compat_view(camera, settings), exact_view(camera, settings)};
  const bool plain = up.d_depth == nullptr && gradients.opacities == nullptr;
  const BackwardBand run = settings.exact ? (camera.orthogonal ? choose<true, true>(scene.channels, track, plain)
                                                               : choose<true, false>(scene.channels, track, plain))
                                          : (camera.orthogonal ? choose<false, true>(scene.channels, track, plain)
                                                               : choose<false, false>(scene.channels, track, plain));
  for_parts(bands.count, [&](int part) { run(arguments, bands, part, track, bands.sums(part)); });
  clock.stage(kBlendStage);
  finish(camera, settings, scene, gradients, bands, rows);
  clock.stage(kFinishStage);
}

LG_END
