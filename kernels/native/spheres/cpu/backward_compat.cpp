#include "spheres/cpu/backward_compat.h"
#include "common/threads.h"
#include "spheres/cpu/pixels.h"
#include "spheres/cpu/tracked.h"

LG_BEGIN_ENGINE(spheres)
namespace {

struct Arguments {
  const Camera& camera;
  const Settings& settings;
  const Scene& scene;
  const Upstream& up;
  const TrackedBands& bands;
  CompatView view;
  bool wants_camera;
};

// The inputs of a block's pixels. Packs in `memory`: K upstream gradients, K colours, then those of `info`.
struct BlockInputs {
  float* memory;
  int channels, track;

  static int floats(int channels, int track) { return (2 * channels + 3 + 2 * track + kLanes) * kLanes; }
  LG_INLINE float* upstream() const { return memory; }
  LG_INLINE float* image() const { return memory + channels * kLanes; }
  LG_INLINE float* info(int field) const { return memory + (2 * channels + field) * kLanes; }
  LG_INLINE float* ids(int t) const { return info(3 + 2 * t); }
};

// The info of a block's pixels; of those off the film, the bits are those of -1.
LG_INLINE void load_info(const FilmBlock& film, const BlockInputs& inputs, const float* info, const float* end) {
  const int count = 3 + 2 * inputs.track;
  // A pack of each pixel, which reads some of the next one's.
  if (count <= kLanes && film.whole() && info + film.index(kLanes - 1) * count + kLanes <= end) {
    Pack rows[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) rows[lane] = load_unaligned(info + film.index(lane) * count);
    transpose_16(rows);
    for (int f = 0; f < kLanes; ++f) rows[f].store(inputs.info(f));
    return;
  }
  for (int f = 0; f < count; ++f) {
    store_lanes(inputs.info(f), -1);
    film.read_slot(info, count, f, inputs.info(f));
  }
}

// The spheres that the pixels of a block tracked, at one place of their lists.
struct Spheres {
  alignas(64) int places[kLanes];
  alignas(64) uint32_t ids[kLanes];

  LG_INLINE Spheres(const float* ids_of_pixels, const int32_t* places_of_ids, uint32_t count) {
    load_int(ids_of_pixels).store(reinterpret_cast<int*>(ids));
    for (int lane = 0; lane < kLanes; ++lane) places[lane] = ids[lane] < count ? places_of_ids[ids[lane]] : lane;
  }
  LG_INLINE MaskPack tracked() const { return IntPack::load(places) > IntPack(kNoSphere - 1); }
  LG_INLINE bool same() const { return to_bits(IntPack::load(places) == IntPack(places[0])) == 0xffff; }
};

template <int kChannels>
LG_INLINE Pack color_of(const Scene& scene, const Spheres& spheres, const Pack* record, int c) {
  if constexpr (kChannels == 3) return record[compat_record::kColor + c];
  alignas(64) float colors[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const bool tracked = spheres.places[lane] >= kNoSphere;
    colors[lane] = tracked ? scene.colors[static_cast<int64_t>(spheres.ids[lane]) * scene.channels + c] : 0.0f;
  }
  return Pack::load(colors);
}

// Adds `sums`, five fields and a color gradient for each of the upstream's channels, to the spheres' rows.
template <int kChannels>
LG_INLINE void add_to_rows(const Arguments& a, const BlockInputs& inputs, const Spheres& spheres, int band,
                           Pack sums[8], Pack share) {
  const int channels = kChannels > 0 ? kChannels : inputs.channels;
#pragma GCC unroll 3
  for (int c = 0; c < 3; ++c) {
    sums[5 + c] = c < channels ? Pack::load(inputs.upstream() + c * kLanes) * share : Pack(0.0f);
  }
  if (spheres.same()) {
    add_sums_of_8(sums, a.bands.row(band, spheres.places[0]));
  } else {
    float* rows[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) rows[lane] = a.bands.row(band, spheres.places[lane]);
    add_to_rows_of_8(sums, rows);
  }
  for (int c = 3; c < channels; ++c) {
    alignas(64) float values[kLanes];
    (Pack::load(inputs.upstream() + c * kLanes) * share).store(values);
    for (int lane = 0; lane < kLanes; ++lane) a.bands.row(band, spheres.places[lane])[5 + c] += values[lane];
  }
}

// The pairs of a block's pixels and the spheres at one place of their lists.
template <bool kOrthogonal, int kChannels>
LG_INLINE void add_pairs(const Arguments& a, const BlockInputs& inputs, const CompatRay<Pack>& ray,
                         const CompatPixel<Pack>& pixel, const Spheres& spheres, int band, Pack ray_sums[3]) {
  const int channels = kChannels > 0 ? kChannels : inputs.channels;
  Pack record[kRecordFloats];
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) record[lane] = Pack::load(a.bands.record(band, spheres.places[lane]));
  transpose_16(record);
  const auto toward = [&](Pack weight, Pack inverse_rest) {
    Pack result = 0.0f;
#pragma GCC unroll 4
    for (int c = 0; c < channels; ++c) {
      result =
          result + compat_channel(Pack::load(inputs.upstream() + c * kLanes),
                                  color_of<kChannels>(a.scene, spheres, record, c),
                                  Pack::load(inputs.image() + c * kLanes), pixel.denominator, weight, inverse_rest);
    }
    return result;
  };
  const MaskPack wide = record[tracked_record::kWide] > Pack(0.0f);
  const PairGradient<Pack> pair = compat_pair<Pack, kOrthogonal>(record, ray, a.view, pixel, toward, wide);
  if (a.wants_camera) {
    const MaskPack tracked = spheres.tracked();
    const Pack weight = record[tracked_record::kCameraWeight];
    ray_sums[0] = add_where(tracked, ray_sums[0], pair.ray_x * weight);
    ray_sums[1] = add_where(tracked, ray_sums[1], pair.ray_y * weight);
    ray_sums[2] = add_where(tracked, ray_sums[2], pair.ray_z * weight);
  }
  Pack sums[8] = {pair.x, pair.y, pair.z, pair.radius, pair.opacity};
  add_to_rows<kChannels>(a, inputs, spheres, band, sums, pair.share);
}

// The sums over a row of blocks that belong to the camera.
struct RaySums {
  Pack sums[9];
  LG_INLINE RaySums() {
    for (Pack& sum : sums) sum = Pack(0.0f);
  }
  LG_INLINE void add(const Pack ray[3], Pack x, Pack y) {
    for (int k = 0; k < 3; ++k) {
      sums[k] = sums[k] + ray[k];
      sums[3 + k] = sums[3 + k] + ray[k] * x;
      sums[6 + k] = sums[6 + k] + ray[k] * y;
    }
  }
  template <bool kOrthogonal>
  void add_to(double* camera_sums) const {
    if constexpr (kOrthogonal) {
      camera_sums[12] += static_cast<double>(sum(sums[0]));
    } else {
      for (int i = 0; i < 9; ++i) camera_sums[3 + i] += static_cast<double>(sum(sums[i]));
    }
  }
};

template <bool kOrthogonal, int kChannels>
LG_INLINE void add_block(const Arguments& a, const BlockInputs& inputs, const FilmBlock& film, int x0, int y0, int band,
                         RaySums& sums) {
  const int32_t* places = a.bands.places_of(band);
  const int64_t pixels = static_cast<int64_t>(a.camera.width) * a.camera.height;
  load_info(film, inputs, a.up.info, a.up.info + pixels * (3 + 2 * inputs.track));
  if (!any(load_int(inputs.ids(0)) > IntPack(-1))) return;
  load_channels(film, a.up.d_color, inputs.channels, inputs.upstream());
  load_channels(film, a.up.color, inputs.channels, inputs.image());
  const Pack x = lane_x() + Pack(static_cast<float>(x0 + a.camera.border_x));
  const Pack y = lane_y() + Pack(static_cast<float>(y0 + a.camera.border_y));
  const CompatRay<Pack> ray = compat_ray<Pack, kOrthogonal>(a.camera, x, y);
  const Pack denominator = Pack::load(inputs.info(1));
  const CompatPixel<Pack> pixel{Pack::load(inputs.info(0)), denominator, Pack(1.0f) / max(denominator, Pack(kFeps)),
                                Pack(1.0f) / max(denominator * denominator, Pack(kFeps))};
  Pack ray_sums[3] = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  for (int t = 0; t < inputs.track; ++t) {
    const Spheres spheres(inputs.ids(t), places, static_cast<uint32_t>(a.scene.count));
    if (!any(spheres.tracked())) break;
    add_pairs<kOrthogonal, kChannels>(a, inputs, ray, pixel, spheres, band, ray_sums);
  }
  sums.add(ray_sums, x, y);
}

template <bool kOrthogonal, int kChannels>
void add_band(const Arguments& a, int band, float* memory, double* camera_sums) {
  const BlockInputs inputs{memory, a.scene.channels, a.settings.n_track};
  __builtin_memset(memory, 0, sizeof(float) * BlockInputs::floats(inputs.channels, inputs.track));
  for (int row = a.bands.first[band]; row < a.bands.first[band + 1]; ++row) {
    RaySums sums;
    const int y0 = 4 * row, rows = a.camera.height - y0 < 4 ? a.camera.height - y0 : 4;
    for (int x0 = 0; x0 < a.camera.width; x0 += 4) {
      const int columns = a.camera.width - x0 < 4 ? a.camera.width - x0 : 4;
      const FilmBlock film{columns, rows, static_cast<int64_t>(y0) * a.camera.width + x0, a.camera.width};
      add_block<kOrthogonal, kChannels>(a, inputs, film, x0, y0, band, sums);
    }
    sums.add_to<kOrthogonal>(camera_sums);
  }
}

using AddBand = void (*)(const Arguments&, int, float*, double*);

AddBand choose(bool orthogonal, int channels) {
  if (orthogonal) return channels == 3 ? &add_band<true, 3> : &add_band<true, 0>;
  return channels == 3 ? &add_band<false, 3> : &add_band<false, 0>;
}

}  // namespace

void backward_compat(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& up,
                     const Gradients& gradients, uint64_t before, Workspace& workspace) {
  StageClock clock(workspace.milliseconds);
  TrackedBands bands = count_tracked(camera, settings, scene, up.info, gradients.touched, workspace);
  clock.stage(kBinStage);
  if (before == 0 || before != workspace.prepared) set_up_only(camera, settings, scene, gradients.touched, workspace);
  place_tracked(prepared_before(camera, scene, workspace), gradients.touched, bands, workspace);
  clock.stage(kSetupStage);
  const Arguments arguments{
      camera, settings, scene, up, bands, compat_view(camera, settings), gradients.camera != nullptr};
  const AddBand add = choose(camera.orthogonal, scene.channels);
  const std::size_t floats = static_cast<std::size_t>(BlockInputs::floats(scene.channels, settings.n_track));
  float* memory = workspace.scratch.ensure<float>(floats * bands.count);
  double* parts = workspace.camera_parts.ensure<double>(static_cast<std::size_t>(bands.count) * kCameraSums);
  for_parts(bands.count, [&](int band) {
    double sums[kCameraSums] = {};
    add(arguments, band, memory + floats * band, sums);
    __builtin_memcpy(parts + static_cast<int64_t>(band) * kCameraSums, sums, sizeof(sums));
  });
  double camera_sums[kCameraSums] = {};
  for (int i = 0; i < bands.count * kCameraSums; ++i) camera_sums[i % kCameraSums] += parts[i];
  clock.stage(kBlendStage);
  finish_tracked(camera, scene, gradients, bands, camera_sums);
  clock.stage(kFinishStage);
}

LG_END
