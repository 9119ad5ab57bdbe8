// Blends the ellipses of each tile, nearest first (spec section 1.7).
#include <atomic>

#include "gaussians/cpu/feature_sums.h"
#include "gaussians/cpu/finish.h"
#include "gaussians/cpu/tile.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

// Number of visits between checks whether a pixel has ended.
constexpr int kStride = 4;

struct Limits {
  Pack log2_alpha_min, alpha_max, transmittance_min;
  bool strict;  // The pixel ends below the limit, not at it.
};

struct Pixels {
  Pack x, y, transmittance;
};

// Alpha of a record at the pixels; 0 where it does not reach.
LG_INLINE Pack alpha_at(const float* r, const Pixels& pixels, const Limits& limits) {
  const Ellipse<Pack> e = ellipse_of<Pack>(r);
  const Pack power = log2_alpha(e, e.x - pixels.x, e.y - pixels.y);
  return zero_unless(power >= limits.log2_alpha_min, min(exp2_bounded(power), limits.alpha_max));
}

LG_INLINE MaskPack ended(Pack transmittance, const Limits& limits) {
  return limits.strict ? transmittance < limits.transmittance_min : transmittance <= limits.transmittance_min;
}

struct Source {
  const Batch& batch;
  const ViewData& data;
  const uint32_t* entries;
  LG_INLINE const float* record(int number) const { return batch.records[number]; }
  template <int kFeatures>
  LG_INLINE const float* features(int number) const {
    if constexpr (kFeatures > 0) return batch.records[number] + record::kFeatures;
    return data.features_of(entries[number]);
  }
};

// One visit that checks whether pixels end, and moves away those that do. Returns the pixels with a contribution.
template <int kFeatures>
LG_INLINE MaskPack careful_visit(const Source& source, int number, const Limits& limits, Pixels& pixels,
                                 Sums<kFeatures>& sums) {
  Pack alpha = alpha_at(source.record(number), pixels, limits);
  const MaskPack ends = ended(fnma(alpha, pixels.transmittance, pixels.transmittance), limits);
  pixels.x = select(ends, Pack(kNowhere), pixels.x);
  alpha = zero_unless(~ends, alpha);
  const Pack weight = alpha * pixels.transmittance;
  pixels.transmittance = fnma(alpha, pixels.transmittance, pixels.transmittance);
  sums.add(weight, source.template features<kFeatures>(number));
  return alpha > Pack(0.0f);
}

// Draws a block's list; returns how much of it was needed.
template <int kFeatures, bool kCount>
LG_INLINE int draw_list(const Source& source, const uint8_t* list, int length, const Limits& limits, Pixels& pixels,
                        Sums<kFeatures>& sums, Pack& contributors) {
  int i = 0;
  while (i < length) {
    if constexpr (kFeatures > 0 && !kCount) {
      if (i + kStride <= length) {
        const Pixels before = pixels;
        const Sums<kFeatures> sums_before = sums;
#pragma GCC unroll 4
        for (int k = 0; k < kStride; ++k) {
          const int number = list[i + k];
          const Pack alpha = alpha_at(source.record(number), pixels, limits);
          const Pack weight = alpha * pixels.transmittance;
          pixels.transmittance = fnma(alpha, pixels.transmittance, pixels.transmittance);
          sums.add(weight, source.template features<kFeatures>(number));
        }
        // Transmittance only falls: if no pixel has ended now, none has on the way.
        if (!any(ended(pixels.transmittance, limits))) {
          i += kStride;
          continue;
        }
        pixels = before;
        sums = sums_before;
      }
    }
    const int end = i + kStride < length ? i + kStride : length;
    for (; i < end; ++i) {
      const MaskPack took_part = careful_visit<kFeatures>(source, list[i], limits, pixels, sums);
      if constexpr (kCount) contributors = add_where(took_part, contributors, Pack(1.0f));
    }
    if (!any(pixels.x < Pack(0.5f * kNowhere))) break;
  }
  return i;
}

// The state of a block between batches: x, transmittance, contributors, then the features.
enum BlockField { kPixelX, kTransmittance, kContributors, kSums };

template <int kFeatures, bool kCount>
void draw_block(const Source& source, int block, const TileOrigin& tile, const Limits& limits, float* state,
                uint32_t* masks) {
  const Batch& batch = source.batch;
  Pixels pixels;
  pixels.x = Pack::load(state + kPixelX * kLanes);
  pixels.y = lane_y() + Pack(static_cast<float>(tile.top + block_top(block)) + tile.pixel_center);
  pixels.transmittance = Pack::load(state + kTransmittance * kLanes);
  Pack contributors = Pack::load(state + kContributors * kLanes);
  Sums<kFeatures> sums;
  if constexpr (kFeatures > 0) {
    sums.load(state + kSums * kLanes);
  } else {
    sums = {state + kSums * kLanes, source.data.features.total()};
  }
  const uint8_t* list = batch.lists[block];
  const int drawn =
      draw_list<kFeatures, kCount>(source, list, batch.lengths[block], limits, pixels, sums, contributors);
  for (int i = 0; i < drawn; ++i) masks[list[i]] |= 1u << block;
  pixels.x.store(state + kPixelX * kLanes);
  pixels.transmittance.store(state + kTransmittance * kLanes);
  contributors.store(state + kContributors * kLanes);
  if constexpr (kFeatures > 0) sums.store(state + kSums * kLanes);
}

struct Drawing {
  const View& view;
  const Settings& settings;
  const ViewData& data;
  const TileImages& images;
};

void clear_block(float* state, int total, const TileOrigin& tile, int block) {
  const Pack x = lane_x() + Pack(static_cast<float>(tile.left + block_left(block)) + tile.pixel_center);
  x.store(state + kPixelX * kLanes);
  Pack(1.0f).store(state + kTransmittance * kLanes);
  for (int f = 0; f <= total; ++f) Pack(0.0f).store(state + (kContributors + f) * kLanes);
}

// A block of the film that does not exist, or whose pixels have all ended, has nothing to draw.
LG_INLINE bool is_done(const float* state) {
  return !any(Pack::load(state + kPixelX * kLanes) < Pack(0.5f * kNowhere));
}

template <int kFeatures, bool kCount>
void draw_tile(const Drawing& d, int tile_x, int tile_y, Batch& batch, float* states, int state_floats) {
  const View& view = d.view;
  const TileOrigin tile = {tile_x * kTileWidth, tile_y * kTileHeight, d.settings.pixel_center,
                           log2_positive(d.settings.alpha_min)};
  const Limits limits = {Pack(tile.log2_alpha_min), Pack(d.settings.alpha_max), Pack(d.settings.transmittance_min),
                         d.settings.inria != 0};
  const int total = d.data.features.total();
  for (int b = 0; b < kBlocks; ++b) clear_block(states + b * state_floats, total, tile, b);
  const int number = tile_y * d.data.tiles_x + tile_x;
  const uint32_t end = d.data.tile_starts[number + 1];
  bool open = true;
  for (uint32_t begin = d.data.tile_starts[number]; begin < end; begin += kBatch) {
    const int count = static_cast<int>(end - begin < kBatch ? end - begin : kBatch);
    const uint32_t* entries = d.data.entries + begin;
    uint32_t* masks = d.data.masks + begin;
    for (int i = 0; i < count; ++i) masks[i] = 0;
    if (!open) continue;
    fill_batch(batch, d.data, tile, d.settings.rectangles != 0, entries, count);
    const Source source{batch, d.data, entries};
    open = false;
    for (int b = 0; b < kBlocks; ++b) {
      float* state = states + b * state_floats;
      if (tile.left + block_left(b) >= view.width || tile.top + block_top(b) >= view.height || is_done(state)) continue;
      open = true;
      if (batch.lengths[b] > 0) draw_block<kFeatures, kCount>(source, b, tile, limits, state, masks);
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    if (tile.left + block_left(b) >= view.width || tile.top + block_top(b) >= view.height) continue;
    const float* state = states + b * state_floats;
    write_block(d.images.tile(), block_left(b), block_top(b), Pack::load(state + kTransmittance * kLanes),
                Pack::load(state + kContributors * kLanes), state + kSums * kLanes);
  }
  d.images.write(tile.left, tile.top);
}

using DrawTile = void (*)(const Drawing&, int, int, Batch&, float*, int);

DrawTile choose(int features, bool count) {
  if (count) return &draw_tile<0, true>;
  switch (features) {
    case 1:
      return &draw_tile<1, false>;
    case 3:
      return &draw_tile<3, false>;
    case 4:
      return &draw_tile<4, false>;
    case 5:
      return &draw_tile<5, false>;
    default:
      return &draw_tile<0, false>;
  }
}

}  // namespace

void draw_view(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
               const ViewData& data, Workspace& w) {
  const int channels = data.features.colors;
  const float* background =
      scene.background != nullptr ? scene.background + static_cast<int64_t>(view) * channels : nullptr;
  const ImageTarget images{outputs, views[view], view, data.features, background};
  const DrawTile draw = choose(data.features.total(), outputs.contributors != nullptr);
  // Neighbouring tiles share ellipses: a thread draws some in a row.
  constexpr int kRun = 4;
  const int runs = (data.tiles_x + kRun - 1) / kRun;
  const int state_floats = (kSums + data.features.total() + 1) * kLanes;
  const int threads = thread_count();
  const int total = runs * data.tiles_y;
  const int parts = total < threads ? total : threads;
  const std::size_t batch_floats = sizeof(Batch) / sizeof(float);
  const std::size_t states_floats = static_cast<std::size_t>(kBlocks) * state_floats;
  const std::size_t part_floats = batch_floats + states_floats + TileImages::floats(channels);
  float* memory = w.scratch.ensure<float>(part_floats * parts);
  std::atomic<int> next{0};
  for_parts(parts, [&](int p) {
    float* own = memory + p * part_floats;
    Batch& batch = *reinterpret_cast<Batch*>(own);
    float* states = own + batch_floats;
    const TileImages tile_images(images, states + states_floats);
    const Drawing drawing{views[view], settings, data, tile_images};
    for (int run = next++; run < total; run = next++) {
      const int y = run / runs, first = run % runs * kRun;
      for (int x = first; x < first + kRun && x < data.tiles_x; ++x) draw(drawing, x, y, batch, states, state_floats);
    }
  });
}

LG_END
