// Counts, places and finishes the spheres that the pixels of an image tracked.
#include "spheres/cpu/tracked.h"
#include "common/threads.h"
#include "spheres/math/camera.h"

LG_BEGIN_ENGINE(spheres)
namespace {

constexpr int kBlockSize = 4;  // Pixels.

struct Range {
  int64_t begin, end;
};

Range range_of(int64_t count, int part, int parts) { return {count * part / parts, count * (part + 1) / parts}; }

// The spheres that each pixel tracked.
struct TrackedIds {
  const int32_t* info;
  int64_t width;  // Pixels.
  int height, track;
  uint32_t spheres;

  // Calls visit(id) for the spheres of a pixel; returns their number.
  template <class Visit>
  LG_INLINE int each(int64_t x, int64_t y, const Visit& visit) const {
    const int32_t* ids = info + (y * width + x) * (3 + 2 * track) + 3;
    int t = 0;
    for (; t < track; ++t) {
      const uint32_t id = static_cast<uint32_t>(ids[2 * t]);
      if (id >= spheres) break;  // The first -1 ends the list.
      visit(id);
    }
    return t;
  }
  int block_rows() const { return (height + kBlockSize - 1) / kBlockSize; }
};

// Divides the rows of blocks into bands with about the same number of tracked spheres, estimated from a few pixels of
// each row.
void divide(const TrackedIds& ids, int threads, TrackedBands& bands) {
  const int rows = ids.block_rows();
  bands.count = threads < rows ? threads : rows;
  if (bands.count > kMaxParts) bands.count = kMaxParts;
  const auto cost = [&](int row) {
    int64_t sum = 0;
    for (int64_t x = 0; x < ids.width; x += kTileWidth) sum += 1 + ids.each(x, row * kBlockSize, [](uint32_t) {});
    return sum;
  };
  int64_t total = 0, before = 0;
  for (int row = 0; row < rows && bands.count > 1; ++row) total += cost(row);
  int row = 0;
  for (int b = 0; b < bands.count; ++b) {
    bands.first[b] = row;
    const int latest = rows - (bands.count - 1 - b);
    while (row < latest && (row == bands.first[b] || before < total * (b + 1) / bands.count)) before += cost(row++);
  }
  bands.first[bands.count] = rows;
}

// Counts the pixels, in the rows of blocks [begin, end), in which each sphere is tracked.
void count_band(const TrackedIds& ids, int begin, int end, int32_t* counts) {
  __builtin_memset(counts, 0, sizeof(int32_t) * ids.spheres);
  const int bottom = end * kBlockSize < ids.height ? end * kBlockSize : ids.height;
  for (int64_t y = begin * kBlockSize; y < bottom; ++y) {
    for (int64_t x = 0; x < ids.width; ++x) {
      ids.each(x, y, [counts](uint32_t id) { ++counts[id]; });
    }
  }
}

// Sums the bands' counts of the spheres in a range; `members` receives the number of spheres in each band.
void sum_counts(const TrackedBands& bands, Range range, int32_t* touched, int64_t* members) {
  for (int b = 0; b < bands.count; ++b) {
    const int32_t* counts = bands.places_of(b);
    int64_t tracked = 0;
    for (int64_t i = range.begin; i < range.end; ++i) {
      touched[i] = (b > 0 ? touched[i] : 0) + counts[i];
      tracked += counts[i] != 0;
    }
    members[b] = tracked;
  }
}

int row_width(int channels) { return (5 + channels + 7) / 8 * 8; }

}  // namespace

TrackedBands count_tracked(const Camera& camera, const Settings& settings, const Scene& scene, const float* info,
                           int32_t* touched, Workspace& w) {
  const TrackedIds ids{reinterpret_cast<const int32_t*>(info), camera.width, camera.height, settings.n_track,
                       static_cast<uint32_t>(scene.count)};
  TrackedBands bands;
  bands.spheres = scene.count;
  bands.width = row_width(scene.channels);
  divide(ids, thread_count(), bands);
  bands.places = w.places.ensure<int32_t>(static_cast<std::size_t>(bands.count) * scene.count);
  for_parts(bands.count, [&](int b) { count_band(ids, bands.first[b], bands.first[b + 1], bands.places_of(b)); });
  // The number of spheres by part and band, later the row of the first sphere.
  const int parts = parts_of(scene.count);
  int64_t* members = w.members.ensure<int64_t>(static_cast<std::size_t>(parts) * bands.count);
  for_parts(parts, [&](int p) {
    sum_counts(bands, range_of(scene.count, p, parts), touched, members + static_cast<int64_t>(p) * bands.count);
  });
  bands.starts[0] = 0;
  for (int b = 0; b < bands.count; ++b) {
    int64_t place = kNoSphere;
    for (int p = 0; p < parts; ++p) {
      int64_t& first = members[static_cast<int64_t>(p) * bands.count + b];
      const int64_t here = first;
      first = place;
      place += here;
    }
    bands.starts[b + 1] = bands.starts[b] + place;
  }
  return bands;
}

namespace {

// Spec 7.2: the factor of a sphere's camera terms; `area` is negative for small spheres.
float camera_weight(float area, int touched) {
  return (area > 0.0f ? area : -area) * 1e-3f / static_cast<float>(touched);
}

void place_range(const Prepared& prepared, const int32_t* touched, const TrackedBands& bands, int band, Range range,
                 int64_t place) {
  int32_t* places = bands.places_of(band);
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (places[i] == 0) continue;
    float* record = bands.record(band, static_cast<int>(place));
    copy_record(record, prepared.records + i * kRecordFloats);
    const float area = prepared.area[i];
    record[tracked_record::kCameraWeight] = camera_weight(area, touched[i]);
    record[tracked_record::kWide] = area > 0.0f ? 1.0f : 0.0f;
    places[i] = static_cast<int32_t>(place++);
  }
}

}  // namespace

void place_tracked(const Prepared& prepared, const int32_t* touched, TrackedBands& bands, Workspace& w) {
  const std::size_t rows = static_cast<std::size_t>(bands.starts[bands.count]);
  bands.records = w.tracked.ensure<float>(rows * kRecordFloats);
  bands.rows = w.rows.ensure<float>(rows * bands.width);
  const int parts = parts_of(bands.spheres);
  const int64_t* members = w.members.ensure<int64_t>(static_cast<std::size_t>(parts) * bands.count);
  for_parts(parts, [&](int p) {
    for (int b = 0; b < bands.count; ++b) {
      place_range(prepared, touched, bands, b, range_of(bands.spheres, p, parts),
                  members[static_cast<int64_t>(p) * bands.count + b]);
    }
  });
  for_parts(bands.count, [&](int b) {
    for (int i = 0; i < kNoSphere * kRecordFloats; ++i) bands.record(b, 0)[i] = 1.0f;
    __builtin_memset(bands.row(b, 0), 0, sizeof(float) * (bands.starts[b + 1] - bands.starts[b]) * bands.width);
  });
}

namespace {

struct Sums {
  double camera[kCameraSums];
  double contributors;  // The divisor of the camera sums: small spheres count once per pixel (spec 7.2).
};

void clear_gradients(const Gradients& to, int channels, int64_t i) {
  if (to.positions != nullptr) to.positions[3 * i] = to.positions[3 * i + 1] = to.positions[3 * i + 2] = 0.0f;
  if (to.radii != nullptr) to.radii[i] = 0.0f;
  if (to.opacities != nullptr) to.opacities[i] = 0.0f;
  for (int c = 0; to.colors != nullptr && c < channels; ++c) to.colors[i * channels + c] = 0.0f;
}

// Sums the rows of a tracked sphere into the row of the first band that has it; returns that band.
int merge_rows(const TrackedBands& bands, int64_t i) {
  int first = 0;
  while (bands.places_of(first)[i] == 0) ++first;
  float* row = bands.row(first, bands.places_of(first)[i]);
  for (int b = first + 1; b < bands.count; ++b) {
    const int place = bands.places_of(b)[i];
    if (place == 0) continue;
    const float* other = bands.row(b, place);
    for (int f = 0; f < bands.width; ++f) row[f] += other[f];
  }
  return first;
}

template <bool kOrthogonal>
void finish_range(const Camera& camera, const Scene& scene, const Gradients& to, const TrackedBands& bands, Range range,
                  Sums& sums) {
  const int channels = scene.channels;
  for (int64_t i = range.begin; i < range.end; ++i) {
    if (to.touched[i] == 0) {
      clear_gradients(to, channels, i);
      continue;
    }
    const int band = merge_rows(bands, i), place = bands.places_of(band)[i];
    const float* row = bands.row(band, place);
    const float scale = 1.0f / static_cast<float>(to.touched[i]);
    if (to.positions != nullptr) {
      float world[3];
      centre_gradient<false, kOrthogonal>(camera, row, world);
      for (int k = 0; k < 3; ++k) to.positions[3 * i + k] = world[k] * scale;
    }
    if (to.radii != nullptr) to.radii[i] = row[3] * scale;
    if (to.opacities != nullptr) to.opacities[i] = row[4] * scale;
    for (int c = 0; to.colors != nullptr && c < channels; ++c) to.colors[i * channels + c] = row[5 + c] * scale;
    if (to.camera == nullptr) continue;
    const float* record = bands.record(band, place);
    add_camera_terms<false, kOrthogonal>(camera, scene.positions + 3 * i, row, record[tracked_record::kCameraWeight],
                                         sums.camera);
    sums.contributors += record[tracked_record::kWide] > 0.0f ? 1.0 : static_cast<double>(to.touched[i]);
  }
}

}  // namespace

void finish_tracked(const Camera& camera, const Scene& scene, const Gradients& to, const TrackedBands& bands,
                    double* camera_sums) {
  // Summed per part, in double, then over the parts in order. The number of parts does not depend on that of threads.
  constexpr int kParts = 32;
  Sums sums[kParts] = {};
  const int parts = scene.count < 4096 ? 1 : kParts;
  for_parts(parts, [&](int p) {
    const Range range = range_of(scene.count, p, parts);
    camera.orthogonal ? finish_range<true>(camera, scene, to, bands, range, sums[p])
                      : finish_range<false>(camera, scene, to, bands, range, sums[p]);
  });
  if (to.camera == nullptr) return;
  double contributors = 0.0;
  for (int p = 0; p < parts; ++p) {
    for (int i = 0; i < kCameraSums; ++i) camera_sums[i] += sums[p].camera[i];
    contributors += sums[p].contributors;
  }
  compat_camera_totals(camera, contributors, camera_sums);
  for (int i = 0; i < kCameraSums; ++i) to.camera[i] = camera_sums[i];
}

LG_END
