// Blends the Gaussians of each tile, nearest first (spec section 1.7). A Shape defines their response at a pixel:
//   kFirstFeature, kInlineFeatures: the features in its records;
//   Pixels, with the transmittance of a block: loaded from the block's state and stored to it, ended by a mask;
//   alpha_at(record, pixels, limits): 0 where it does not reach;
//   Extra: sums that need more than a weight and features.
#pragma once

#include <atomic>

#include "gaussians/cpu/feature_sums.h"
#include "gaussians/cpu/finish.h"
#include "gaussians/cpu/tile.h"

LG_BEGIN_ENGINE(gaussians)

// The number of visits between checks whether a pixel has ended.
inline constexpr int kStride = 4;

struct DrawLimits {
  Pack log2_alpha_min, alpha_max, transmittance_min;
  bool strict;  // Whether a pixel ends only below the limit, not at it.
};

LG_INLINE MaskPack ended(Pack transmittance, const DrawLimits& limits) {
  return limits.strict ? transmittance < limits.transmittance_min : transmittance <= limits.transmittance_min;
}

template <class Shape>
struct Source {
  const Batch& batch;
  const ViewData& data;
  const uint32_t* entries;
  LG_INLINE const float* record(int number) const { return batch.records[number]; }
  template <int kFeatures>
  LG_INLINE const float* features(int number) const {
    if constexpr (kFeatures > 0 && kFeatures <= Shape::kInlineFeatures) {
      return batch.records[number] + Shape::kFirstFeature;
    }
    return data.features_of(entries[number]);
  }
};

// No sums besides those of features.
struct NoExtra {
  static constexpr int kFloats = 0;
  LG_INLINE void load(const float*, const Features&) {}
  LG_INLINE void store(float*) const {}
  LG_INLINE void add(Pack, Pack, const float*) {}
};

// The state of a block's pixels between visits.
template <class Shape, int kFeatures>
struct BlockState {
  typename Shape::Pixels pixels;
  Sums<kFeatures> sums;
  typename Shape::Extra extra;

  // Adds a visit; returns the transmittance after it.
  LG_INLINE void add(Pack alpha, const float* features) {
    const Pack before = pixels.transmittance, weight = alpha * before;
    pixels.transmittance = fnma(alpha, before, before);
    sums.add(weight, features);
    extra.add(weight, before, features);
  }
};

// Visits a Gaussian and checks whether pixels end. Returns the pixels to which it contributes.
template <class Shape, int kFeatures>
LG_INLINE MaskPack careful_visit(const Source<Shape>& source, int number, const DrawLimits& limits,
                                 BlockState<Shape, kFeatures>& state) {
  auto& pixels = state.pixels;
  Pack alpha = Shape::alpha_at(source.record(number), pixels, limits);
  const MaskPack ends = ended(fnma(alpha, pixels.transmittance, pixels.transmittance), limits);
  pixels.end(ends);
  alpha = zero_unless(~ends, alpha);
  state.add(alpha, source.template features<kFeatures>(number));
  return alpha > Pack(0.0f);
}

// Blends a block's list; returns how many entries were needed.
template <class Shape, int kFeatures, bool kCount>
LG_INLINE int draw_list(const Source<Shape>& source, const uint8_t* list, int length, const DrawLimits& limits,
                        BlockState<Shape, kFeatures>& state, Pack& contributors) {
  int i = 0;
  while (i < length) {
    if constexpr (kFeatures > 0 && !kCount) {
      if (i + kStride <= length) {
        const BlockState<Shape, kFeatures> before = state;
#pragma GCC unroll 4
        for (int k = 0; k < kStride; ++k) {
          const int number = list[i + k];
          const Pack alpha = Shape::alpha_at(source.record(number), state.pixels, limits);
          state.add(alpha, source.template features<kFeatures>(number));
        }
        // Transmittance only decreases: if no pixel has ended by now, none ended before.
        if (!any(ended(state.pixels.transmittance, limits))) {
          i += kStride;
          continue;
        }
        state = before;
      }
    }
    const int end = i + kStride < length ? i + kStride : length;
    for (; i < end; ++i) {
      const MaskPack took_part = careful_visit(source, list[i], limits, state);
      if constexpr (kCount) contributors = add_where(took_part, contributors, Pack(1.0f));
    }
    if (!any(state.pixels.open())) break;
  }
  return i;
}

// The state of a block in memory: the state of Pixels besides the transmittance, the transmittance, contributors, then
// the features and the extra sums.
enum BlockField { kPixel, kTransmittance, kContributors, kSums };

template <class Shape, int kFeatures, bool kCount>
void draw_block(const Source<Shape>& source, int block, const TileOrigin& tile, const DrawLimits& limits, float* memory,
                uint32_t* masks) {
  const Batch& batch = source.batch;
  BlockState<Shape, kFeatures> state;
  state.pixels.place(tile.left + block_left(block), tile.top + block_top(block), tile.pixel_center,
                     Pack::load(memory + kPixel * kLanes));
  state.pixels.transmittance = Pack::load(memory + kTransmittance * kLanes);
  Pack contributors = Pack::load(memory + kContributors * kLanes);
  const int total = source.data.features.total();
  if constexpr (kFeatures > 0) {
    state.sums.load(memory + kSums * kLanes);
  } else {
    state.sums = {memory + kSums * kLanes, total};
  }
  state.extra.load(memory + (kSums + total) * kLanes, source.data.features);
  const uint8_t* list = batch.lists[block];
  const int drawn =
      draw_list<Shape, kFeatures, kCount>(source, list, batch.lengths[block], limits, state, contributors);
  for (int i = 0; i < drawn; ++i) masks[list[i]] |= 1u << block;
  state.pixels.kept().store(memory + kPixel * kLanes);
  state.pixels.transmittance.store(memory + kTransmittance * kLanes);
  contributors.store(memory + kContributors * kLanes);
  if constexpr (kFeatures > 0) state.sums.store(memory + kSums * kLanes);
  state.extra.store(memory + (kSums + total) * kLanes);
}

struct Drawing {
  const View& view;
  const Settings& settings;
  const ViewData& data;
  const TileImages& images;
};

template <class Shape>
void clear_block(float* state, int total, const TileOrigin& tile, int block) {
  Shape::Pixels::kept_at_first(tile, block).store(state + kPixel * kLanes);
  Pack(1.0f).store(state + kTransmittance * kLanes);
  for (int f = 0; f <= total; ++f) Pack(0.0f).store(state + (kContributors + f) * kLanes);
}

// Whether a block has nothing to draw, because it is not on the film or all its pixels have ended.
LG_INLINE bool is_done(const float* state) { return !any(Pack::load(state + kPixel * kLanes) < Pack(0.5f * kNowhere)); }

template <class Shape, int kFeatures, bool kCount>
void draw_tile(const Drawing& d, int tile_x, int tile_y, Batch& batch, float* states, int state_floats) {
  const View& view = d.view;
  const TileOrigin tile = {tile_x * kTileWidth, tile_y * kTileHeight, d.settings.pixel_center,
                           log2_positive(d.settings.alpha_min)};
  const DrawLimits limits = {Pack(tile.log2_alpha_min), Pack(d.settings.alpha_max), Pack(d.settings.transmittance_min),
                             d.settings.inria != 0};
  const int sums = d.data.features.total() + Shape::Extra::kFloats;
  for (int b = 0; b < kBlocks; ++b) clear_block<Shape>(states + b * state_floats, sums, tile, b);
  const int number = tile_y * d.data.tiles_x + tile_x;
  const uint32_t end = d.data.tile_starts[number + 1];
  bool open = true;
  for (uint32_t begin = d.data.tile_starts[number]; begin < end; begin += kBatch) {
    const int count = static_cast<int>(end - begin < kBatch ? end - begin : kBatch);
    const uint32_t* entries = d.data.entries + begin;
    uint32_t* masks = d.data.masks + begin;
    for (int i = 0; i < count; ++i) masks[i] = 0;
    if (!open) continue;
    if (is_stopping()) return;
    fill_batch(batch, d.data, tile, d.settings.rectangles != 0, entries, count);
    const Source<Shape> source{batch, d.data, entries};
    open = false;
    for (int b = 0; b < kBlocks; ++b) {
      float* state = states + b * state_floats;
      if (tile.left + block_left(b) >= view.width || tile.top + block_top(b) >= view.height || is_done(state)) continue;
      open = true;
      if (batch.lengths[b] > 0) draw_block<Shape, kFeatures, kCount>(source, b, tile, limits, state, masks);
    }
  }
  uint32_t closed = 0;
  for (int b = 0; b < kBlocks; ++b) {
    if (tile.left + block_left(b) >= view.width || tile.top + block_top(b) >= view.height) continue;
    const float* state = states + b * state_floats;
    closed |= static_cast<uint32_t>(is_done(state)) << b;
    write_block(d.images.tile(), block_left(b), block_top(b), Pack::load(state + kTransmittance * kLanes),
                Pack::load(state + kContributors * kLanes), state + kSums * kLanes);
  }
  if (d.data.closed != nullptr) d.data.closed[number] = closed;
  d.images.write(tile.left, tile.top);
}

using DrawTile = void (*)(const Drawing&, int, int, Batch&, float*, int);

// Renders the images of a view with `draw`, which keeps `sums` packs of sums for each block.
inline void draw_tiles(const View* views, int view, const Settings& settings, const Scene& scene,
                       const Outputs& outputs, const ViewData& data, DrawTile draw, int sums, Workspace& w) {
  const int channels = data.features.colors;
  const float* background =
      scene.background != nullptr ? scene.background + static_cast<int64_t>(view) * channels : nullptr;
  const ImageTarget images{outputs, views[view], view, data.features, background};
  // Neighbouring tiles share ellipses, so a thread renders several in a row.
  constexpr int kRun = 4;
  const int runs = (data.tiles_x + kRun - 1) / kRun;
  const int state_floats = (kSums + sums + 1) * kLanes;
  const int threads = thread_count();
  const int total = runs * (data.end_row - data.first_row);
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
    for (int run = next++; run < total && !is_stopping(); run = next++) {
      const int y = data.first_row + run / runs, first = run % runs * kRun;
      for (int x = first; x < first + kRun && x < data.tiles_x; ++x) draw(drawing, x, y, batch, states, state_floats);
    }
  });
}

LG_END
