// Bands and rows of sums for the backward pass, and the gradient arrays and camera sums that follow from them.
#include "spheres/cpu/finish.h"
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

// Spec 7.2: area / 1000 / count per sphere, and the number of contributors, in which small spheres count per pixel.
double camera_weights(const Prepared& prepared, const int32_t* touched, int64_t n, float* weights) {
  double contributors = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    weights[i] = 0.0f;
    if (touched[i] == 0) continue;
    const float area = prepared.area[i];
    const bool wide = area > 0.0f;
    weights[i] = (wide ? area : -area) * 1e-3f / static_cast<float>(touched[i]);
    contributors += wide ? 1.0 : static_cast<double>(touched[i]);
  }
  return contributors;
}

}  // namespace

void count_tracked(const Camera& camera, const Settings& settings, int64_t n, const float* info, int32_t* touched,
                   Workspace& workspace) {
  const int64_t pixels = static_cast<int64_t>(camera.width) * camera.height;
  const int width = 3 + 2 * settings.n_track;
  const int parts = parts_for(pixels);
  int32_t* counts = workspace.histogram.ensure<int32_t>(static_cast<std::size_t>(parts) * n);
  const int32_t* words = reinterpret_cast<const int32_t*>(info);
  for_parts(parts, [&](int p) {
    int32_t* own = counts + p * n;
    __builtin_memset(own, 0, sizeof(int32_t) * n);
    const Part range = part_of(pixels, p, parts);
    for (int64_t i = range.begin; i < range.end; ++i) {
      for (int t = 0; t < settings.n_track; ++t) {
        const uint32_t id = static_cast<uint32_t>(words[i * width + 3 + 2 * t]);
        if (id >= static_cast<uint64_t>(n)) break;  // The first -1 ends the list.
        ++own[id];
      }
    }
  });
  const int sum_parts = parts_for(n);
  for_parts(sum_parts, [&](int p) {
    const Part range = part_of(n, p, sum_parts);
    for (int64_t i = range.begin; i < range.end; ++i) {
      int32_t total = 0;
      for (int q = 0; q < parts; ++q) total += counts[q * n + i];
      touched[i] = total;
    }
  });
}

Bands make_bands(const Prepared& prepared, int threads, std::size_t scratch_floats, Workspace& workspace) {
  Bands bands;
  bands.count = threads < prepared.tiles_y ? threads : prepared.tiles_y;
  if (bands.count > kMaxBands) bands.count = kMaxBands;
  const int tiles = prepared.tiles_x * prepared.tiles_y;
  // A tile costs something even if its list is empty.
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

Rows make_rows(const Settings& settings, const Scene& scene, const Gradients& gradients, const Prepared& prepared,
               Bands& bands, Workspace& workspace) {
  const int64_t n = scene.count;
  Rows rows{};
  rows.width = row_width(scene.channels);
  rows.rows = workspace.rows.ensure<float>(static_cast<std::size_t>(n) * rows.width);
  rows.touched = gradients.touched;
  rows.count_touched = settings.exact != 0;
  int32_t* crossing = workspace.crossing.ensure<int32_t>(static_cast<std::size_t>(n));
  rows.crossing = crossing;
  rows.crossings = number_crossings(prepared, bands, n, crossing);
  const std::size_t crossing_floats = static_cast<std::size_t>(bands.count) * rows.crossings * (rows.width + 8);
  rows.crossing_rows = workspace.crossing_rows.ensure<float>(crossing_floats);
  __builtin_memset(rows.crossing_rows, 0, crossing_floats * sizeof(float));
  const int parts = parts_for(n);
  for_parts(parts, [&](int p) {
    const Part range = part_of(n, p, parts);
    // The memory may be null if there is nothing to clear.
    if (range.begin == range.end) return;
    __builtin_memset(rows.rows + range.begin * rows.width, 0, (range.end - range.begin) * rows.width * sizeof(float));
    if (rows.count_touched) {
      __builtin_memset(rows.touched + range.begin, 0, (range.end - range.begin) * sizeof(int32_t));
    }
  });
  bands.part_doubles = (kCameraSums + scene.channels + 7) / 8 * 8;
  const std::size_t doubles = static_cast<std::size_t>(bands.count) * bands.part_doubles;
  bands.parts = workspace.camera_parts.ensure<double>(doubles);
  __builtin_memset(bands.parts, 0, doubles * sizeof(double));
  if (!settings.exact && gradients.camera != nullptr) {
    float* weights = workspace.weights.ensure<float>(static_cast<std::size_t>(n));
    rows.contributors = camera_weights(prepared, rows.touched, n, weights);
    rows.camera_weights = weights;
  }
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
      if (rows.count_touched) rows.touched[i] += reinterpret_cast<const int32_t*>(other + rows.width)[0];
    }
  }
}

template <bool kExact, bool kOrthogonal>
void finish_spheres(const Camera& camera, const Scene& scene, const Gradients& to, const Rows& rows, int64_t begin,
                    int64_t end, double* sums) {
  const int channels = scene.channels;
  for (int64_t i = begin; i < end; ++i) {
    const float* row = rows.rows + i * rows.width;
    const float scale = kExact ? 1.0f : (rows.touched[i] > 0 ? 1.0f / static_cast<float>(rows.touched[i]) : 0.0f);
    if (to.positions != nullptr) {
      float world[3];
      centre_gradient<kExact, kOrthogonal>(camera, row, world);
      for (int k = 0; k < 3; ++k) to.positions[3 * i + k] = world[k] * scale;
    }
    if (to.radii != nullptr) to.radii[i] = row[3] * scale;
    if (to.opacities != nullptr) to.opacities[i] = row[4] * scale;
    if (to.colors != nullptr) {
      for (int c = 0; c < channels; ++c) to.colors[i * channels + c] = row[5 + c] * scale;
    }
    if (to.camera == nullptr || rows.touched[i] == 0) continue;
    add_camera_terms<kExact, kOrthogonal>(camera, scene.positions + 3 * i, row, kExact ? 1.0f : rows.camera_weights[i],
                                          sums);
  }
}

}  // namespace

void finish(const Camera& camera, const Settings& settings, const Scene& scene, const Gradients& to, const Bands& bands,
            const Rows& rows) {
  const int64_t n = scene.count;
  merge_crossings(n, bands, rows);
  // Camera terms are summed per part and then in the order of the parts, in double.
  constexpr int kParts = 32;
  double sums[kParts][kCameraSums] = {};
  const int parts = n < 4096 ? 1 : kParts;
  for_parts(parts, [&](int p) {
    const int64_t begin = n * p / parts, end = n * (p + 1) / parts;
    if (settings.exact) {
      camera.orthogonal ? finish_spheres<true, true>(camera, scene, to, rows, begin, end, sums[p])
                        : finish_spheres<true, false>(camera, scene, to, rows, begin, end, sums[p]);
    } else {
      camera.orthogonal ? finish_spheres<false, true>(camera, scene, to, rows, begin, end, sums[p])
                        : finish_spheres<false, false>(camera, scene, to, rows, begin, end, sums[p]);
    }
  });
  double total[kCameraSums] = {};
  for (int p = 0; p < parts; ++p) {
    for (int i = 0; i < kCameraSums; ++i) total[i] += sums[p][i];
  }
  for (int b = 0; b < bands.count; ++b) {
    for (int i = 0; i < kCameraSums; ++i) total[i] += bands.sums(b)[i];
  }
  if (to.camera != nullptr) {
    settings.exact ? (void)0 : compat_camera_totals(camera, rows.contributors, total);
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
