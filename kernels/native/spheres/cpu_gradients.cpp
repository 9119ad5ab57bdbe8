// From the rows of sums to gradient arrays and camera sums.
#include "common/threads.h"
#include "spheres/cpu_finish.h"
#include "spheres/math_camera.h"

LG_BEGIN_ENGINE(spheres)
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
