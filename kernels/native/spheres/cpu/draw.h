// Blends the spheres of a batch into a block, for both semantics: first finds the hits among all candidates, then
// blends only the hits. A single loop would cost a mispredicted branch for most candidates.
#pragma once

#include "spheres/cpu/block.h"
#include "spheres/math/blend.h"

LG_BEGIN_ENGINE(spheres)

struct DrawArguments {
  const Scene* scene;
  const Settings* settings;
  ExactView exact;
  CompatView compat;
  int channels, track;
  bool info;        // Whether the distance of the last hit is needed; compat always needs it to stop.
  bool counted;     // Whether the number of hits is needed: for an output, or to stop.
  bool background;  // Compat: whether the background's weight is needed, for alpha.
};

// Whether there is a tracker of kTrack spheres.
template <int kTrack>
LG_INLINE bool tracks(const DrawArguments& arguments) {
  return kTrack > 0 || (kTrack == kAnyCount && arguments.track > 0);
}

template <int kChannels>
LG_INLINE Pack channel(const float* record, const Scene& scene, uint32_t id, int c) {
  if constexpr (kChannels == 3) return Pack(record[compat_record::kColor + c]);
  return Pack(scene.colors[static_cast<int64_t>(id) * scene.channels + c]);
}

// ---- compat ----

// Fills `events` and `checks`; returns the number of events. Candidates are counted per pixel: after every 65th the
// early stop is checked and the count restarts, whether or not the pixel stops (spec 5.2), so this needs no blending.
template <bool kOrthogonal>
LG_INLINE int find_compat(const Batch& batch, int block, const CompatRay<Pack>& ray, float* state, uint32_t* events,
                          uint16_t* checks, float* shapes) {
  IntPack loaded = load_int(state + kLoaded * kLanes);
  const IntPack one = 1, zero = 0, full = 64;
  int count = 0;
  for (int i = 0; i < batch.lengths[block]; ++i) {
    const uint32_t entry = static_cast<uint32_t>(batch.lists[block][i]);
    const float* record = batch.records[entry & 0xffff];
    const MaskPack candidates = mask_from_bits(entry >> 16);
    const CompatOffset<Pack> offset = compat_offset<Pack, kOrthogonal>(record, ray);
    const MaskPack hit = compat_hit<Pack, kOrthogonal>(record, ray, offset) & candidates;
    loaded = select(candidates, loaded + one, loaded);
    const MaskPack check = loaded > full;
    loaded = select(check, zero, loaded);
    const uint32_t hit_bits = to_bits(hit), check_bits = to_bits(check);
    events[count] = (entry & 0xffff) | (hit_bits << 16);
    checks[count] = static_cast<uint16_t>(check_bits);
    offset.square.store(shapes + count * kShapeFloats);
    count += (hit_bits | check_bits) != 0;
  }
  store_int(state + kLoaded * kLanes, loaded);
  return count;
}

// Computes the shapes of the hits. They are independent of each other, while each blend depends on the previous one: in
// a separate loop the CPU works on several shapes at a time.
template <bool kOrthogonal>
LG_INLINE void shape_compat(const Batch& batch, const CompatRay<Pack>& ray, const CompatView& view,
                            const uint32_t* events, int count, float* shapes) {
  for (int i = 0; i < count; ++i) {
    const float* record = batch.records[events[i] & 0xffff];
    float* shape = shapes + i * kShapeFloats;
    CompatOffset<Pack> offset;
    offset.square = Pack::load(shape);
    const CompatGeometry<Pack> g = compat_geometry<Pack, kOrthogonal>(record, ray, view, offset);
    g.closeness.store(shape);
    g.exponent.store(shape + kLanes);
    g.depth.store(shape + 2 * kLanes);
  }
}

template <int kChannels, int kTrack>
LG_INLINE void draw_compat(const Batch& batch, const float* shapes, const CompatView& view,
                           const DrawArguments& arguments, float* state, const uint32_t* events, const uint16_t* checks,
                           int count) {
  using namespace compat_record;
  Pack maximum = Pack::load(state + kMaximum * kLanes), background = Pack::load(state + kMaximumLow * kLanes);
  Pack denominator = Pack::load(state + kDenominator * kLanes), max_near = Pack::load(state + kMaxNear * kLanes);
  IntPack hits = load_int(state + kHits * kLanes);
  MaskPack active = Pack::load(state + kActive * kLanes) > Pack(0.0f);
  float* const channels_home = state + kBlockFields * kLanes;
  Packs<kChannels> color(channels_home, arguments.channels);
  const int channels = Packs<kChannels>::count(arguments.channels);
  float* const tracker_home = channels_home + channels * kLanes;
  Tracker<kTrack> tracker(tracker_home, arguments.track);
  const Pack zero = 0.0f, one = 1.0f;
  const bool limited = arguments.settings->max_hits <= 0x7fffffffu, counted = arguments.counted;
  const bool background_wanted = arguments.background;
  for (int i = 0; i < count; ++i) {
    const float* record = batch.records[events[i] & 0xffff];
    const uint32_t id = batch.ids[events[i] & 0xffff];
    const float* shape = shapes + i * kShapeFloats;
    const MaskPack hit = mask_from_bits(events[i] >> 16) & active;
    const Pack exponent = Pack::load(shape + kLanes);
    const auto [weight, scale, higher] = compat_join<Pack>(record, Pack::load(shape), exponent, maximum);
    denominator = select(hit, denominator * scale + weight, denominator);
    if (background_wanted) background = select(hit, background * scale, background);
    maximum = select(hit & higher, exponent, maximum);
#pragma GCC unroll 4
    for (int c = 0; c < channels; ++c) {
      const Pack value = channel<kChannels>(record, *arguments.scene, id, c);
      color.set(c, select(hit, weight * value + color.get(c) * scale, color.get(c)));
    }
    max_near = select(hit, Pack(record[kNear]), max_near);
    if (counted) hits = select(hit, hits + IntPack(1), hits);
    if (tracks<kTrack>(arguments)) tracker.insert(hit, Pack::load(shape + 2 * kLanes), static_cast<int>(id));
    if (checks[i] != 0) {
      MaskPack stop = mask_from_bits(0);
      if (view.may_stop) {
        // Distances are positive: -1 before the first hit.
        const Pack threshold = select(max_near >= zero, compat_threshold(denominator, maximum, view), Pack(kNoDepth));
        stop = Pack(record[kNear]) > threshold;
      }
      if (limited) stop = stop | (hits > IntPack(static_cast<int>(arguments.settings->max_hits) - 1));
      active = active & ~(stop & mask_from_bits(checks[i]));
      if (!any(active)) break;
    }
  }
  maximum.store(state + kMaximum * kLanes);
  background.store(state + kMaximumLow * kLanes);
  denominator.store(state + kDenominator * kLanes);
  max_near.store(state + kMaxNear * kLanes);
  store_int(state + kHits * kLanes, hits);
  select(active, one, zero).store(state + kActive * kLanes);
  color.save(channels_home);
  tracker.save(tracker_home);
}

// ---- exact ----

// Floats of a hit's shape. Without a tracker it has no depth, so that more shapes fit into the first-level cache.
template <int kTrack>
inline constexpr int kExactShape = kTrack == 0 ? 2 * kLanes : kShapeFloats;

template <bool kOrthogonal, int kTrack>
LG_INLINE int find_exact(const Batch& batch, int block, const ExactRay<Pack>& ray, const ExactView& view,
                         uint32_t* events, float* shapes) {
  int count = 0;
  for (int i = 0; i < batch.lengths[block]; ++i) {
    const uint32_t entry = static_cast<uint32_t>(batch.lists[block][i]);
    const float* record = batch.records[entry & 0xffff];
    const Pack square = exact_offset<Pack, kOrthogonal>(record, ray, view).square;
    const uint32_t hit = to_bits(square < Pack(record[exact_record::kMaxSquare])) & (entry >> 16);
    events[count] = (entry & 0xffff) | (hit << 16);
    square.store(shapes + count * kExactShape<kTrack>);
    count += hit != 0;
  }
  return count;
}

// Computes the shapes of the hits. They are independent of each other, while each blend depends on the previous one: in
// a separate loop the CPU works on several shapes at a time. Pixels at an outline are listed, and recomputed in double
// at the end: about every twentieth block has one, so that a branch would often be mispredicted.
template <bool kOrthogonal, int kTrack>
LG_INLINE void shape_exact(const Batch& batch, const ExactView& view, int x, int y, const uint32_t* events, int count,
                           float* shapes, int* outlines) {
  constexpr int kShape = kExactShape<kTrack>;
  const IntPack lanes = truncate(lanes_0_to_15());
  int listed = 0;
  for (int i = 0; i < count; ++i) {
    const float* record = batch.records[events[i] & 0xffff];
    const MaskPack reached = mask_from_bits(events[i] >> 16);
    float* shape = shapes + i * kShape;
    Pack excess;
    ExactGeometry<Pack> g = exact_chord<Pack, kOrthogonal>(record, Pack::load(shape), excess);
    exact_finish(record, g);
    zero_unless(reached, g.closeness).store(shape);
    g.low.store(shape + kLanes);
    if constexpr (kTrack != 0) exact_depth(record, g).store(shape + 2 * kLanes);
    listed += store_set(reached & exact_at_outline(g), lanes + IntPack(i * kLanes), outlines + listed);
  }
  for (int k = 0; k < listed; ++k) {
    const int i = outlines[k] / kLanes, lane = outlines[k] % kLanes;
    const float* record = batch.records[events[i] & 0xffff];
    const ExactRay<float> pixel =
        exact_ray<float, kOrthogonal>(view, static_cast<float>(x + lane % 4), static_cast<float>(y + lane / 4));
    const ExactGeometry<float> g = exact_geometry<float, kOrthogonal>(record, pixel, view, true);
    float* shape = shapes + i * kShape + lane;
    *shape = g.closeness;
    shape[kLanes] = g.low;
    if constexpr (kTrack != 0) shape[2 * kLanes] = exact_depth(record, g);
  }
}

inline constexpr int kStopInterval = 16;

template <bool kOrthogonal, int kChannels, int kTrack>
LG_INLINE void draw_exact(const Batch& batch, const float* shapes, const Camera& camera, const DrawArguments& arguments,
                          float* state, const uint32_t* events, int count, int position, int length) {
  using namespace exact_record;
  Pack high = Pack::load(state + kMaximum * kLanes), low = Pack::load(state + kMaximumLow * kLanes);
  Pack denominator = Pack::load(state + kDenominator * kLanes), max_near = Pack::load(state + kMaxNear * kLanes);
  IntPack hits = load_int(state + kHits * kLanes), stop = load_int(state + kStop * kLanes);
  MaskPack active = Pack::load(state + kActive * kLanes) > Pack(0.0f);
  float* const channels_home = state + kBlockFields * kLanes;
  Packs<kChannels> color(channels_home, arguments.channels);
  const int channels = Packs<kChannels>::count(arguments.channels);
  float* const tracker_home = channels_home + channels * kLanes;
  Tracker<kTrack> tracker(tracker_home, arguments.track);
  const Pack zero = 0.0f, one = 1.0f;
  const bool limited = arguments.settings->max_hits <= 0x7fffffffu;
  for (int i = 0; i < count; ++i) {
    const float* record = batch.records[events[i] & 0xffff];
    const uint32_t id = batch.ids[events[i] & 0xffff];
    const int place = position + static_cast<int>(events[i] & 0xffff);
    const float* shape = shapes + i * kExactShape<kTrack>;
    const Pack closeness = Pack::load(shape), exponent_low = Pack::load(shape + kLanes);
    // A weightless hit must not raise the maximum.
    const MaskPack hit = active & (closeness > zero);
    const auto joining = exact_join<Pack>(record, closeness, exponent_low, high, low);
    const MaskPack raise = hit & joining.higher;
    const Pack weight = zero_unless(hit, joining.weight), scale = select(raise, joining.scale, one);
    denominator = fma(denominator, scale, weight);
    high = select(raise, Pack(record[kHigh]), high);
    low = select(raise, exponent_low, low);
#pragma GCC unroll 4
    for (int c = 0; c < channels; ++c) {
      const Pack value = channel<kChannels>(record, *arguments.scene, id, c);
      color.set(c, fma(weight, value, color.get(c) * scale));
    }
    if (arguments.info) max_near = select(hit, Pack(exact_near(record)), max_near);
    if (arguments.counted) hits = select(hit, hits + IntPack(1), hits);
    if (tracks<kTrack>(arguments)) tracker.insert(hit, Pack::load(shape + 2 * kLanes), static_cast<int>(id));
    MaskPack ends = mask_from_bits(0);
    if (limited) ends = hits > IntPack(static_cast<int>(arguments.settings->max_hits) - 1);
    if (i % kStopInterval == kStopInterval - 1) {
      ends =
          ends | exact_may_stop<Pack>(*arguments.settings, exact_bound(camera, *arguments.settings, exact_near(record)),
                                      length - place - 1, high, low, denominator);
    }
    ends = ends & active;
    if (any(ends)) {
      stop = select(ends, IntPack(place + 1), stop);
      active = active & ~ends;
      if (!any(active)) break;
    }
  }
  high.store(state + kMaximum * kLanes);
  low.store(state + kMaximumLow * kLanes);
  denominator.store(state + kDenominator * kLanes);
  max_near.store(state + kMaxNear * kLanes);
  store_int(state + kHits * kLanes, hits);
  store_int(state + kStop * kLanes, stop);
  select(active, one, zero).store(state + kActive * kLanes);
  color.save(channels_home);
  tracker.save(tracker_home);
}

LG_END
