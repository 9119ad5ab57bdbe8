#include "gaussians/cpu/sensor.h"

LG_BEGIN_ENGINE(gaussians)
namespace {

template <class Lens>
unsigned footprints(const SensorPlace& at, const Gaussian<Pack>& gaussian, unsigned used, SensorFootprint<Pack>& to) {
  unsigned visible = 0;
  for (int part = 0; part < kParts64; ++part) {
    SensorFootprint<Pack64> f;
    MaskPack64 seen = mask_of_part(used, part);
    seen = seen & sensor_footprint<Lens>(at, gaussian_part(gaussian, part), f);
    visible |= bits_of(seen) << (part * kLanes64);
    narrow(f.x, part, to.x);
    narrow(f.y, part, to.y);
    narrow(f.depth, part, to.depth);
    narrow(f.a, part, to.a);
    narrow(f.b, part, to.b);
    narrow(f.c, part, to.c);
    narrow(f.sharp, part, to.sharp);
    narrow(f.schur, part, to.schur);
  }
  return visible;
}

template <class Lens>
void part_backward(const SensorPlace& at, const Gaussian<Pack>& gaussian, const PixelSums<Pack>& sums,
                   const Pack& v_inverse_depth, int part, const PartSums& add, GaussianGradient<Pack>& to) {
  const auto of = [&](const Pack& a) { return widen(a, part); };
  const PixelSums<Pack64> pixel = {of(sums.one), of(sums.x),  of(sums.y),     of(sums.xx),
                                   of(sums.xy),  of(sums.yy), of(sums.depth), {of(sums.extra.x), of(sums.extra.y)}};
  const GaussianGradient<Pack64> g =
      sensor_backward<Lens>(at, gaussian_part(gaussian, part), pixel, of(v_inverse_depth), add);
  put(g, part, to);
}

}  // namespace

Projected<Pack> project_sensor(const SensorPlace& at, const Gaussian<Pack>& gaussian, unsigned used) {
  SensorFootprint<Pack> f;
  Projected<Pack> g;
  with_any_sensor_lens(at.sensor.lens, [&](auto lens) {
    g.visible = mask_from_bits(footprints<decltype(lens)>(at, gaussian, used, f));
    finish_sensor<!std::is_same_v<decltype(lens), SpinningLidar>>(at.view, at.settings, f, gaussian.opacity, g);
  });
  return g;
}

GaussianGradient<Pack> project_sensor_backward(const SensorPlace& at, const Gaussian<Pack>& gaussian,
                                               const PixelSums<Pack>& sums, Pack v_inverse_depth, unsigned mask,
                                               const SensorSums& view_sums) {
  GaussianGradient<Pack> to{};
  with_sensor_lens(at.sensor.lens, [&](auto lens) {
    using Lens = decltype(lens);
    for (int part = 0; part < kParts64; ++part) {
      if ((mask >> (part * kLanes64) & kPartBits) == 0) continue;
      const PartSums add{view_sums, mask_of_part(mask, part)};
      part_backward<Lens>(at, gaussian, sums, v_inverse_depth, part, add, to);
    }
  });
  return to;
}

LG_END
