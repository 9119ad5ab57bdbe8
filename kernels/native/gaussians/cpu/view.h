// The stages of a view on the CPU, and the data passed between them.
#pragma once

#include "common/cpu/tile_lists.h"
#include "gaussians/cpu/engine.h"
#include "gaussians/cpu/places.h"
#include "gaussians/math/camera.h"
#include "gaussians/math/record.h"
#include "gaussians/math/surfel.h"

LG_BEGIN_ENGINE(gaussians)

// The position at which a record's features begin, and how many fit; along rays features are in a separate array.
constexpr int first_feature(const Features& features) {
  return features.surfels ? int{surfel_record::kFeatures} : int{record::kFeatures};
}
constexpr int inline_features(const Features& features) {
  return features.rays ? -1 : kRecordFloats - first_feature(features);
}

// Arrays of a view's state.
struct ViewData {
  Features features;
  int tiles_x, tiles_y;
  int first_row, end_row;  // The rows of tiles that are rendered.
  int64_t places;
  Sixteen* sixteens;
  PixelRectangle* rectangles;
  float* records;        // Records of ellipses, surfels, or along rays: see math/record.h, math/surfel.h, math/ray.h.
  float* more_features;  // Null if features are in the records.
  float* bounds;         // Along rays: ray_bounds; for surfels: ellipses that hold them, as records. Else null.
  const uint32_t* tile_starts;
  const uint32_t* entries;
  uint32_t* masks;
  uint32_t* closed;  // Null along rays and for surfels.

  LG_INLINE const float* features_of(uint32_t place) const {
    return more_features != nullptr ? more_features + static_cast<int64_t>(place) * features.total()
                                    : records + static_cast<int64_t>(place) * kRecordFloats + first_feature(features);
  }
  // The ellipse by which tiles and blocks are found, on the film.
  LG_INLINE const float* ellipse(uint32_t place) const {
    return (bounds != nullptr ? bounds : records) + static_cast<int64_t>(place) * kRecordFloats;
  }
};

inline ViewData view_data(ViewState& state, int64_t count) {
  ViewData data;
  const std::size_t n = state.places, tiles = static_cast<std::size_t>(state.tiles_x) * state.tiles_y;
  data.features = state.features;
  data.tiles_x = state.tiles_x;
  data.tiles_y = state.tiles_y;
  data.first_row = state.first_row;
  data.end_row = state.end_row;
  data.places = static_cast<int64_t>(n);
  data.sixteens = state.sixteens.ensure<Sixteen>(sixteens_of(count));
  data.rectangles = state.rectangles.ensure<PixelRectangle>(n);
  data.records = state.records.ensure<float>(n * kRecordFloats);
  const int total = state.features.total();
  const bool apart = total > inline_features(state.features);
  data.more_features = apart ? state.more_features.ensure<float>(n * total + 1) : nullptr;
  const bool bounded = state.features.rays || state.features.surfels;
  data.bounds = bounded ? state.bounds.ensure<float>(n * kRecordFloats) : nullptr;
  data.tile_starts = state.tile_starts.ensure<uint32_t>(tiles + 1);
  data.entries = state.entries.ensure<uint32_t>(1);
  data.masks = state.masks.ensure<uint32_t>(1);
  data.closed = bounded ? nullptr : state.closed.ensure<uint32_t>(tiles);
  return data;
}

// The numbers of the Gaussians within the scene, by place.
inline const uint32_t* numbers_of(const ViewData& data, int64_t count, Buffer& memory) {
  uint32_t* numbers = memory.ensure<uint32_t>(static_cast<std::size_t>(data.places));
  for (std::size_t i = 0; i < sixteens_of(count); ++i) {
    uint32_t* to = numbers + data.sixteens[i].first;
    for (unsigned rest = data.sixteens[i].drawn; rest != 0; rest &= rest - 1) {
      *to++ = static_cast<uint32_t>(i * kLanes) + static_cast<uint32_t>(__builtin_ctz(rest));
    }
  }
  return numbers;
}

// Calls run(std::integral_constant<Lens, ...>) for the view's lens.
template <class Run>
LG_INLINE void with_lens(const View& view, Run&& run) {
  switch (lens_of(view)) {
    case Lens::pinhole:
      return run(std::integral_constant<Lens, Lens::pinhole>());
    case Lens::distorted:
      return run(std::integral_constant<Lens, Lens::distorted>());
    case Lens::orthographic:
      return run(std::integral_constant<Lens, Lens::orthographic>());
    case Lens::fisheye:
      return run(std::integral_constant<Lens, Lens::fisheye>());
  }
}

// The same for an integer from 0 to kMax.
template <int kMax, class Run>
LG_INLINE void with_constant(int value, Run&& run) {
  if constexpr (kMax > 0) {
    if (value < kMax) return with_constant<kMax - 1>(value, static_cast<Run&&>(run));
  }
  run(std::integral_constant<int, kMax>());
}

// Calls run(begin, end, slice) for the part of the Gaussians [begin, end) in each slice.
template <class Run>
LG_INLINE void each_slice(const Scene& scene, int64_t begin, int64_t end, Run&& run) {
  for (int g = 0; g < scene.slices; ++g) {
    const int64_t from = scene.slice_begins[g] > begin ? scene.slice_begins[g] : begin;
    const int64_t to = scene.slice_begins[g + 1] < end ? scene.slice_begins[g + 1] : end;
    if (from < to) run(from, to, g);
  }
}

struct RayField;

// Assigns places to the Gaussians that reach pixels, and fills them (`rays` is null on the film); returns their
// (distance << 32 | place), by part.
uint64_t* project_view(const View* views, int view, const Settings& settings, const Scene& scene,
                       const Outputs& outputs, ViewState& state, const RayField* rays, Workspace& workspace,
                       Segments& segments);
void bin_view(const Settings& settings, const ViewData& data, const uint64_t* pairs, const Segments& segments,
              ViewState& state, Workspace& workspace);
void draw_view(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
               const ViewData& data, Workspace& workspace);
void draw_surfels(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
                  const ViewData& data, Workspace& workspace);

LG_END
