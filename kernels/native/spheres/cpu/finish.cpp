// Bands and rows of sums for the backward pass of exact, and the gradient arrays and camera sums computed from them.
#include "spheres/cpu/finish.h"
#include "common/cpu/transpose.h"
#include "common/threads.h"
#include "spheres/math/camera.h"

LG_BEGIN_ENGINE(spheres)
namespace {

int row_width(int channels) { return channels == 3 ? kRowFields : (5 + channels + 7) / 8 * 8; }

bool crosses(const Bands& bands, const PixelRectangle& r) {
  if (r.y1 <= r.y0) return false;
  for (int b = 1; b < bands.count; ++b) {
    const int edge = bands.first[b] * kTileHeight;
    if (r.y0 < edge && r.y1 > edge) return true;
  }
  return false;
}

struct Part {
  int64_t begin, end;
};

Part part_of(int64_t count, int part, int parts) { return {count * part / parts, count * (part + 1) / parts}; }

int parts_for(int64_t count) {
  const int64_t useful = count / 4096 + 1;
  return static_cast<int>(useful < thread_count() ? useful : thread_count());
}

// Numbers the spheres that reach into several bands.
int number_crossings(const Prepared& prepared, const Bands& bands, int64_t n, int32_t* crossing) {
  if (bands.count == 1) return 0;
  const int parts = parts_for(n);
  int counts[kMaxBands];
  for_parts(parts, [&](int p) {
    const Part range = part_of(n, p, parts);
    int count = 0;
    for (int64_t i = range.begin; i < range.end; ++i) {
      crossing[i] = crosses(bands, prepared.rectangles[i]) ? count++ : -1;
    }
    counts[p] = count;
  });
  int total = counts[0];
  for (int p = 1; p < parts; ++p) {
    const Part range = part_of(n, p, parts);
    for (int64_t i = range.begin; i < range.end; ++i) crossing[i] += crossing[i] >= 0 ? total : 0;
    total += counts[p];
  }
  return total;
}

}  // namespace

Bands make_bands(const Prepared& prepared, int threads, std::size_t scratch_floats, Workspace& workspace) {
  Bands bands;
  bands.count = threads < prepared.tiles_y ? threads : prepared.tiles_y;
  if (bands.count > kMaxBands) bands.count = kMaxBands;
  const int tiles = prepared.tiles_x * prepared.tiles_y;
  // Even a tile with an empty list has a cost.
  const auto cost = [&](int row) {
    return static_cast<double>(prepared.tile_starts[row * prepared.tiles_x]) + 64.0 * row * prepared.tiles_x;
  };
  const double total = static_cast<double>(prepared.tile_starts[tiles]) + 64.0 * tiles;
  int row = 0;
  for (int b = 0; b < bands.count; ++b) {
    bands.first[b] = row;
    const int latest = prepared.tiles_y - (bands.count - 1 - b);
    ++row;
    while (row < latest && cost(row) < total * (b + 1) / bands.count) ++row;
  }
  bands.first[bands.count] = prepared.tiles_y;
  bands.scratch_floats = scratch_floats;
  bands.scratch = workspace.scratch.ensure<float>(scratch_floats * bands.count);
  return bands;
}

Rows make_rows(const Scene& scene, const Gradients& gradients, const Prepared& prepared, bool counted, Bands& bands,
               Workspace& workspace) {
  const int64_t n = scene.count;
  Rows rows{};
  rows.width = row_width(scene.channels);
  rows.rows = workspace.rows.ensure<float>(static_cast<std::size_t>(n) * rows.width);
  rows.touched = gradients.touched;
  rows.counted = counted;
  int32_t* crossing = workspace.crossing.ensure<int32_t>(static_cast<std::size_t>(n));
  rows.crossing = crossing;
  rows.crossings = number_crossings(prepared, bands, n, crossing);
  const std::size_t crossing_floats = static_cast<std::size_t>(bands.count) * rows.crossings * (rows.width + 8);
  rows.crossing_rows = workspace.crossing_rows.ensure<float>(crossing_floats);
  __builtin_memset(rows.crossing_rows, 0, crossing_floats * sizeof(float));
  const int parts = parts_for(n);
  for_parts(parts, [&](int p) {
    const Part range = part_of(n, p, parts);
    // The pointer may be null if there is nothing to clear.
    if (range.begin == range.end) return;
    __builtin_memset(rows.rows + range.begin * rows.width, 0, (range.end - range.begin) * rows.width * sizeof(float));
    if (!counted) __builtin_memset(rows.touched + range.begin, 0, (range.end - range.begin) * sizeof(int32_t));
  });
  bands.part_doubles = (kCameraSums + scene.channels + 7) / 8 * 8;
  const std::size_t doubles = static_cast<std::size_t>(bands.count) * bands.part_doubles;
  bands.parts = workspace.camera_parts.ensure<double>(doubles);
  __builtin_memset(bands.parts, 0, doubles * sizeof(double));
  return rows;
}

namespace {

void merge_crossings(int64_t n, const Bands& bands, const Rows& rows) {
  if (rows.crossings == 0) return;
  const int fields = rows.width;
  for (int64_t i = 0; i < n; ++i) {
    if (rows.crossing[i] < 0) continue;
    float* row = rows.rows + i * rows.width;
    for (int b = 0; b < bands.count; ++b) {
      const float* other =
          rows.crossing_rows + (static_cast<std::size_t>(b) * rows.crossings + rows.crossing[i]) * (rows.width + 8);
      for (int f = 0; f < fields; ++f) row[f] += other[f];
      if (!rows.counted) rows.touched[i] += reinterpret_cast<const int32_t*>(other + rows.width)[0];
    }
  }
}

template <bool kOrthogonal>
void finish_sphere(const Camera& camera, const Scene& scene, const Prepared& prepared, const Gradients& to,
                   const Rows& rows, int64_t i, double* sums) {
  float* row = rows.rows + i * rows.width;
  if (rows.counted) rows.touched[i] = static_cast<int32_t>(row[kRowCount]);
  if (rows.touched[i] > 0) exact_row<kOrthogonal>(camera, prepared.records + i * kRecordFloats, row);
  if (to.positions != nullptr) centre_gradient<true, kOrthogonal>(camera, row, to.positions + 3 * i);
  if (to.radii != nullptr) to.radii[i] = row[3];
  if (to.opacities != nullptr) to.opacities[i] = row[4];
  if (to.colors != nullptr) {
    for (int c = 0; c < scene.channels; ++c) to.colors[i * scene.channels + c] = row[5 + c];
  }
  if (to.camera == nullptr || rows.touched[i] == 0) return;
  add_camera_terms<true, kOrthogonal>(camera, scene.positions + 3 * i, row, 1.0f, sums);
}

// Sums over spheres: of outer(dL/d centre, position), and of dL/d centre.
struct CameraLaneSums {
  LaneSums outer[3][3], centre[3];

  LG_INLINE void add(const Pack row[3], const Pack position[3]) {
    for (int i = 0; i < 3; ++i) {
      for (int k = 0; k < 3; ++k) outer[i][k].add_product(row[i], position[k]);
      centre[i].add(row[i]);
    }
  }
  void add_to(const Camera& camera, double* sums) const {
    for (int i = 0; i < 3; ++i) {
      const double total = centre[i].total();
      for (int k = 0; k < 3; ++k) sums[3 * i + k] += outer[i][k].total() - total * camera.eye64[k];
      sums[9 + i] += total;
    }
  }
};

// Writes dL/d centre, world frame.
LG_INLINE void write_centres(const Camera& camera, const Pack row[3], float* to) {
  alignas(64) float lanes[3][kLanes], world[3][kLanes];
  for (int k = 0; k < 3; ++k) row[k].store(lanes[k]);
  const double* m = camera.rotation64;
  for (int k = 0; k < 3; ++k) {
    for (int i = 0; i < kLanes; ++i) {
      world[k][i] = static_cast<float>(m[k] * lanes[0][i] + m[3 + k] * lanes[1][i] + m[6 + k] * lanes[2][i]);
    }
  }
  interleave_3(Pack::load(world[0]), Pack::load(world[1]), Pack::load(world[2]), to);
}

// Prefetches what finish_pack reads for the spheres after next: it computes little and would wait for memory.
LG_INLINE void request_pack(const Prepared& prepared, const Rows& rows, int64_t i) {
  constexpr int kAhead = 2 * kLanes, kRowsPerLine = kRecordFloats / kRowFields;
  for (int lane = 0; lane < kLanes; ++lane) __builtin_prefetch(prepared.records + (i + kAhead + lane) * kRecordFloats);
  for (int lane = 0; lane < kLanes; lane += kRowsPerLine) {
    __builtin_prefetch(rows.rows + (i + kAhead + lane) * kRowFields);
  }
}

// Finishes sixteen spheres of 3 channels; reads one more row.
template <bool kOrthogonal>
LG_INLINE void finish_pack(const Camera& camera, const Scene& scene, const Prepared& prepared, const Gradients& to,
                           const Rows& rows, int64_t i, CameraLaneSums& sums) {
  request_pack(prepared, rows, i);
  Pack row[kLanes];
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) row[lane] = load_unaligned(rows.rows + (i + lane) * kRowFields);
  transpose_16(row);
  float* const counts = reinterpret_cast<float*>(rows.touched + i);
  if (rows.counted) store_unaligned(from_bits(truncate(row[kRowCount])), counts);
  const MaskPack touched = bits(load_unaligned(counts)) > IntPack(0);
  Pack record[kRecordFloats];
#pragma GCC unroll 16
  for (int lane = 0; lane < kLanes; ++lane) record[lane] = Pack::load(prepared.records + (i + lane) * kRecordFloats);
  transpose_16(record);
  exact_row<kOrthogonal>(camera, record, row);
  for (int k = 0; k < 4; ++k) row[k] = zero_unless(touched, row[k]);
  if (to.positions != nullptr) write_centres(camera, row, to.positions + 3 * i);
  if (to.radii != nullptr) store_unaligned(row[3], to.radii + i);
  if (to.opacities != nullptr) store_unaligned(row[4], to.opacities + i);
  if (to.colors != nullptr) interleave_3(row[5], row[6], row[7], to.colors + 3 * i);
  if (to.camera == nullptr) return;
  Pack position[3];
  deinterleave_3(scene.positions + 3 * i, position[0], position[1], position[2]);
  // A sphere that no pixel shows may be anywhere.
  for (Pack& p : position) p = zero_unless(touched, p);
  sums.add(row, position);
}

template <bool kOrthogonal>
void finish_spheres(const Camera& camera, const Scene& scene, const Prepared& prepared, const Gradients& to,
                    const Rows& rows, int64_t begin, int64_t end, double* sums) {
  CameraLaneSums pack_sums;
  int64_t i = begin;
  if (scene.channels == 3) {
    for (; i + kLanes <= end && i + kLanes < scene.count; i += kLanes) {
      finish_pack<kOrthogonal>(camera, scene, prepared, to, rows, i, pack_sums);
    }
  }
  for (; i < end; ++i) finish_sphere<kOrthogonal>(camera, scene, prepared, to, rows, i, sums);
  pack_sums.add_to(camera, sums);
}

}  // namespace

void finish(const Camera& camera, const Scene& scene, const Prepared& prepared, const Gradients& to, const Bands& bands,
            const Rows& rows) {
  const int64_t n = scene.count;
  merge_crossings(n, bands, rows);
  // Camera terms are summed per part, then over the parts in order, in double.
  constexpr int kParts = 32;
  double sums[kParts][kCameraSums] = {};
  const int parts = n < 4096 ? 1 : kParts;
  for_parts(parts, [&](int p) {
    const int64_t begin = n * p / parts, end = n * (p + 1) / parts;
    camera.orthogonal ? finish_spheres<true>(camera, scene, prepared, to, rows, begin, end, sums[p])
                      : finish_spheres<false>(camera, scene, prepared, to, rows, begin, end, sums[p]);
  });
  double total[kCameraSums] = {};
  for (int p = 0; p < parts; ++p) {
    for (int i = 0; i < kCameraSums; ++i) total[i] += sums[p][i];
  }
  for (int b = 0; b < bands.count; ++b) {
    for (int i = 0; i < kCameraSums; ++i) total[i] += bands.sums(b)[i];
  }
  if (to.camera != nullptr) {
    for (int i = 0; i < kCameraSums; ++i) to.camera[i] = total[i];
  }
  if (to.background != nullptr) {
    for (int c = 0; c < scene.channels; ++c) {
      double sum = 0.0;
      for (int b = 0; b < bands.count; ++b) sum += bands.sums(b)[kCameraSums + c];
      to.background[c] = static_cast<float>(sum);
    }
  }
}

LG_END
