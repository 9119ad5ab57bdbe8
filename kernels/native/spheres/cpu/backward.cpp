// Gradients on the CPU: backward_compat.h for compat, backward_exact.h for exact. Each thread takes a band of rows of
// tiles. A sphere's row of sums belongs to the band that contains it; only the few spheres that overlap several bands
// get a row per band. Without atomics, the result is deterministic.
#include "common/threads.h"
#include "spheres/cpu/backward_compat.h"
#include "spheres/cpu/backward_exact.h"

LG_BEGIN_ENGINE(spheres)
namespace {

template <bool kOrthogonal, int kChannels, bool kPlain, bool kCamera>
void backward_band(const PairArguments& a, const Bands& bands, int part, int track, double* part_sums) {
  const int channels = a.scene.channels;
  float* memory = bands.scratch + static_cast<std::size_t>(part) * bands.scratch_floats;
  const TilePixels pixels{memory, pixel_floats(channels), channels, track};
  BandRows band(a.rows, bands, part);
  BackgroundSums background{part_sums + kCameraSums, 0.0, 0.0};
  for (int ty = bands.first[part]; ty < bands.first[part + 1]; ++ty) {
    for (int tx = 0; tx < a.prepared.tiles_x && !is_stopping(); ++tx) {
      backward_tile<kOrthogonal, kChannels, kPlain, kCamera>(a, pixels, band, background, tx, ty, part_sums);
    }
  }
  // The sum of dL/de e: the pairs' sum is relative to M, and their terms in M sum to minus the background's.
  const double pairs = part_sums[18];
  part_sums[17] = (pairs - background.exponent_m) * a.view.inverse_range;
  part_sums[18] = -(pairs + background.exponent) / a.settings.gamma64;
}

using BackwardBand = void (*)(const PairArguments&, const Bands&, int, int, double*);

template <bool kOrthogonal>
BackwardBand choose(int channels, bool plain, bool camera) {
  if (channels != 3) return &backward_band<kOrthogonal, 0, false, true>;
  if (!plain) return &backward_band<kOrthogonal, 3, false, true>;
  return camera ? &backward_band<kOrthogonal, 3, true, true> : &backward_band<kOrthogonal, 3, true, false>;
}

}  // namespace

void backward(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& up,
              const Gradients& gradients, uint64_t before, Workspace& workspace) {
  if (!settings.exact) return backward_compat(camera, settings, scene, up, gradients, before, workspace);
  StageClock clock(workspace.milliseconds);
  const Prepared prepared = before != 0 && before == workspace.prepared
                                ? prepared_before(camera, scene, workspace)
                                : prepare(camera, settings, scene, workspace, clock);
  Bands bands = make_bands(prepared, thread_count(), tile_pixel_floats(scene.channels), workspace);
  const int64_t pixels = static_cast<int64_t>(camera.width) * camera.height;
  const bool plain = up.d_depth == nullptr && scene.opacities == nullptr && gradients.opacities == nullptr &&
                     scene.channels == 3 && pixels <= kMaxCounted;
  const Rows rows = make_rows(scene, gradients, prepared, plain, bands, workspace);
  const PairArguments arguments{camera, settings, scene, up, prepared, rows, exact_view(camera, settings)};
  const bool wants_camera = gradients.camera != nullptr;
  const BackwardBand run = camera.orthogonal ? choose<true>(scene.channels, plain, wants_camera)
                                             : choose<false>(scene.channels, plain, wants_camera);
  for_parts(bands.count, [&](int part) { run(arguments, bands, part, settings.n_track, bands.sums(part)); });
  clock.stage(kBlendStage);
  finish(camera, scene, prepared, gradients, bands, rows);
  clock.stage(kFinishStage);
}

LG_END
