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

// The records and rows of a band.
struct BandRows {
  const int32_t* places;  // [N]
  const float* records;
  float* rows;

  BandRows(const TrackedBands& bands, int band)
      : places(bands.places_of(band)), records(bands.record(band, 0)), rows(bands.row(band, 0)) {}
  LG_INLINE const float* record(int place) const { return records + static_cast<int64_t>(place) * kRecordFloats; }
  LG_INLINE float* row(int place, int width) const { return rows + static_cast<int64_t>(place) * width; }
};

// The inputs of a block's pixels. Packs in `memory`: K upstream gradients, K colours, then the fields of `info`.
struct BlockInputs {
  float* memory;
  int* places;  // [T] packs: places of the tracked spheres in the band, or a lane's number if there is none.
  int channels, track;
  int used;   // The number of list places at which any pixel has a sphere.
  Pack x, y;  // Aperture pixel coordinates.

  static int floats(int channels, int track) { return (2 * channels + 3 + 2 * track + kLanes) * kLanes; }
  static std::size_t bytes(int channels, int track) {
    return sizeof(float) * floats(channels, track) + sizeof(int) * track * kLanes;
  }
  LG_INLINE float* upstream() const { return memory; }
  LG_INLINE float* image() const { return memory + channels * kLanes; }
  LG_INLINE float* info(int field) const { return memory + (2 * channels + field) * kLanes; }
  LG_INLINE float* ids(int t) const { return info(3 + 2 * t); }
};

// Loads the info of a block's pixels; pixels off the film get the bits of -1.
LG_INLINE void load_info(const FilmBlock& film, const BlockInputs& inputs, const float* info, const float* end) {
  const int count = 3 + 2 * inputs.track;
  // A pack per pixel, which also reads some values of the next pixel.
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
  const int* places;
  const float* ids;
  MaskPack tracked;

  LG_INLINE Spheres(const BlockInputs& inputs, int t)
      : places(inputs.places + t * kLanes), ids(inputs.ids(t)), tracked(load_int(ids) > IntPack(-1)) {}
  LG_INLINE bool same() const { return to_bits((load_int(ids) == IntPack(bits(ids[0]))) & tracked) == 0xffff; }
};

template <int kChannels>
LG_INLINE Pack color_of(const Scene& scene, const Spheres& spheres, const Pack* record, int c) {
  if constexpr (kChannels == 3) return record[compat_record::kColor + c];
  alignas(64) float colors[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t id = bits(spheres.ids[lane]);
    colors[lane] = id >= 0 ? scene.colors[id * scene.channels + c] : 0.0f;
  }
  return Pack::load(colors);
}

// Adds `sums`, five fields and a colour gradient per channel, to the spheres' rows.
template <int kChannels>
LG_INLINE void add_to_rows(const Arguments& a, const BlockInputs& inputs, const Spheres& spheres, const BandRows& band,
                           Pack sums[8], Pack share) {
  const int channels = kChannels > 0 ? kChannels : inputs.channels;
  const int width = kChannels == 3 ? 8 : a.bands.width;
#pragma GCC unroll 3
  for (int c = 0; c < 3; ++c) {
    sums[5 + c] = c < channels ? Pack::load(inputs.upstream() + c * kLanes) * share : Pack(0.0f);
  }
  if (spheres.same()) {
    add_sums_of_8(sums, band.row(spheres.places[0], width));
  } else {
    float* rows[kLanes];
#pragma GCC unroll 16
    for (int lane = 0; lane < kLanes; ++lane) rows[lane] = band.row(spheres.places[lane], width);
    add_to_rows_of_8(sums, rows);
  }
  for (int c = 3; c < channels; ++c) {
    alignas(64) float values[kLanes];
    (Pack::load(inputs.upstream() + c * kLanes) * share).store(values);
    for (int lane = 0; lane < kLanes; ++lane) band.row(spheres.places[lane], width)[5 + c] += values[lane];
  }
}

// Adds the pairs of a block's pixels and the spheres at one place of their lists. kOpacities: whether gradients of
// opacities are requested.
template <bool kOrthogonal, int kChannels, bool kOpacities>
LG_INLINE void add_pairs(const Arguments& a, const BlockInputs& inputs, const CompatRay<Pack>& ray,
                         const CompatPixel<Pack>& pixel, const Spheres& spheres, const BandRows& band,
                         Pack ray_sums[3]) {
  const int channels = kChannels > 0 ? kChannels : inputs.channels;
  Pack record[kRecordFloats];
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) record[lane] = Pack::load(band.record(spheres.places[lane]));
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
    const Pack weight = record[tracked_record::kCameraWeight];
    ray_sums[0] = add_where(spheres.tracked, ray_sums[0], pair.ray_x * weight);
    ray_sums[1] = add_where(spheres.tracked, ray_sums[1], pair.ray_y * weight);
    ray_sums[2] = add_where(spheres.tracked, ray_sums[2], pair.ray_z * weight);
  }
  Pack sums[8] = {pair.x, pair.y, pair.z, pair.radius, kOpacities ? pair.opacity : Pack(0.0f)};
  add_to_rows<kChannels>(a, inputs, spheres, band, sums, pair.share);
}

// The camera's sums over a row of blocks.
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

// Looks up the spheres that the pixels of a block tracked, and prefetches their records and rows.
LG_INLINE void find_spheres(const Arguments& a, const BandRows& band, BlockInputs& inputs) {
  const uint32_t count = static_cast<uint32_t>(a.scene.count);
  for (inputs.used = 0; inputs.used < inputs.track; ++inputs.used) {
    const float* ids = inputs.ids(inputs.used);
    if (!any(load_int(ids) > IntPack(-1))) break;
    int* places = inputs.places + inputs.used * kLanes;
    for (int lane = 0; lane < kLanes; ++lane) {
      const uint32_t id = static_cast<uint32_t>(bits(ids[lane]));
      places[lane] = id < count ? band.places[id] : lane;
      __builtin_prefetch(band.record(places[lane]));
      __builtin_prefetch(band.row(places[lane], a.bands.width), 1);
    }
  }
}

LG_INLINE void load_block(const Arguments& a, const BandRows& band, int x0, int y0, BlockInputs& inputs) {
  const int width = a.camera.width, height = a.camera.height;
  const FilmBlock film{width - x0 < 4 ? width - x0 : 4, height - y0 < 4 ? height - y0 : 4,
                       static_cast<int64_t>(y0) * width + x0, width};
  load_info(film, inputs, a.up.info, a.up.info + static_cast<int64_t>(width) * height * (3 + 2 * inputs.track));
  find_spheres(a, band, inputs);
  if (inputs.used == 0) return;
  load_channels(film, a.up.d_color, inputs.channels, inputs.upstream());
  load_channels(film, a.up.color, inputs.channels, inputs.image());
  inputs.x = lane_x() + Pack(static_cast<float>(x0 + a.camera.border_x));
  inputs.y = lane_y() + Pack(static_cast<float>(y0 + a.camera.border_y));
}

template <bool kOrthogonal, int kChannels, bool kOpacities>
LG_INLINE void add_block(const Arguments& a, const BlockInputs& inputs, const BandRows& band, RaySums& sums) {
  if (inputs.used == 0) return;
  const CompatRay<Pack> ray = compat_ray<Pack, kOrthogonal>(a.camera, inputs.x, inputs.y);
  const Pack denominator = Pack::load(inputs.info(1));
  const CompatPixel<Pack> pixel{Pack::load(inputs.info(0)), denominator, Pack(1.0f) / max(denominator, Pack(kFeps)),
                                Pack(1.0f) / max(denominator * denominator, Pack(kFeps))};
  Pack ray_sums[3] = {Pack(0.0f), Pack(0.0f), Pack(0.0f)};
  for (int t = 0; t < inputs.used; ++t) {
    add_pairs<kOrthogonal, kChannels, kOpacities>(a, inputs, ray, pixel, Spheres(inputs, t), band, ray_sums);
  }
  sums.add(ray_sums, inputs.x, inputs.y);
}

// Each block is loaded before the previous block is added: its spheres are scattered in memory, and arrive meanwhile.
template <bool kOrthogonal, int kChannels, bool kOpacities>
void add_band(const Arguments& a, int band, char* memory, double* camera_sums) {
  const int channels = a.scene.channels, track = a.settings.n_track;
  const std::size_t bytes = BlockInputs::bytes(channels, track);
  __builtin_memset(memory, 0, 2 * bytes);
  BlockInputs inputs[2];
  for (int k = 0; k < 2; ++k) {
    float* floats = reinterpret_cast<float*>(memory + k * bytes);
    inputs[k] = {floats,    reinterpret_cast<int*>(floats + BlockInputs::floats(channels, track)),
                 channels,  track,
                 0,         Pack(0.0f),
                 Pack(0.0f)};
  }
  const BandRows rows(a.bands, band);
  for (int row = a.bands.first[band]; row < a.bands.first[band + 1]; ++row) {
    RaySums sums;
    load_block(a, rows, 0, 4 * row, inputs[0]);
    for (int x = 0; x < a.camera.width; x += 4) {
      if (x % 64 == 0 && is_stopping()) return;
      if (x + 4 < a.camera.width) load_block(a, rows, x + 4, 4 * row, inputs[(x / 4 + 1) % 2]);
      add_block<kOrthogonal, kChannels, kOpacities>(a, inputs[x / 4 % 2], rows, sums);
    }
    sums.add_to<kOrthogonal>(camera_sums);
  }
}

using AddBand = void (*)(const Arguments&, int, char*, double*);

template <bool kOrthogonal>
AddBand choose(int channels, bool opacities) {
  if (channels == 3 && !opacities) return &add_band<kOrthogonal, 3, false>;
  return channels == 3 ? &add_band<kOrthogonal, 3, true> : &add_band<kOrthogonal, 0, true>;
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
  const bool opacities = gradients.opacities != nullptr;
  const AddBand add =
      camera.orthogonal ? choose<true>(scene.channels, opacities) : choose<false>(scene.channels, opacities);
  const std::size_t bytes = 2 * BlockInputs::bytes(scene.channels, settings.n_track);
  char* memory = workspace.scratch.ensure<char>(bytes * bands.count);
  double* parts = workspace.camera_parts.ensure<double>(static_cast<std::size_t>(bands.count) * kCameraSums);
  for_parts(bands.count, [&](int band) {
    double sums[kCameraSums] = {};
    add(arguments, band, memory + bytes * band, sums);
    __builtin_memcpy(parts + static_cast<int64_t>(band) * kCameraSums, sums, sizeof(sums));
  });
  double camera_sums[kCameraSums] = {};
  for (int i = 0; i < bands.count * kCameraSums; ++i) camera_sums[i % kCameraSums] += parts[i];
  clock.stage(kBlendStage);
  finish_tracked(camera, scene, gradients, bands, camera_sums);
  clock.stage(kFinishStage);
}

LG_END
