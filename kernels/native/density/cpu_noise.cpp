// Noise on the means of Gaussians.
#include <cstring>

#include "common/transpose.h"
#include "density/cpu_lanes.h"
#include "density/cpu_loops.h"
#include "density/math_noise.h"

LG_BEGIN_ENGINE(density)
namespace {

using gaussians::Triple;

// Rows [first, first + used) of [N, width], lanes past the last 0; aligned.
template <int kWidth>
struct LaneRows {
  alignas(64) float values[kWidth * kLanes];

  LG_INLINE LaneRows(const float* array, int64_t first, int used) {
    if (used == kLanes) {
      std::memcpy(values, array + kWidth * first, sizeof(values));
      return;
    }
    std::memset(values, 0, sizeof(values));
    std::memcpy(values, array + kWidth * first, sizeof(float) * kWidth * static_cast<std::size_t>(used));
  }
  LG_INLINE void store(float* array, int64_t first, int used) const {
    if (used == kLanes) {
      std::memcpy(array + kWidth * first, values, sizeof(values));
      return;
    }
    std::memcpy(array + kWidth * first, values, sizeof(float) * kWidth * static_cast<std::size_t>(used));
  }
};

LG_INLINE Triple<Pack> triple_of(const LaneRows<3>& rows) {
  Triple<Pack> t;
  deinterleave_3(rows.values, t.x, t.y, t.z);
  return t;
}

LG_INLINE gaussians::Quaternion<Pack> quaternion_of(const LaneRows<4>& rows) {
  alignas(64) float c[4][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 4; ++k) c[k][i] = rows.values[4 * i + k];
  }
  return {Pack::load(c[0]), Pack::load(c[1]), Pack::load(c[2]), Pack::load(c[3])};
}

void shake(const Gaussians& g, const Draw& draw, Pack strength, int64_t first, int used) {
  const Pack gate = strength * noise_gate(Pack::load(LaneRows<1>(g.opacities, first, used).values));
  if (!any(gate > Pack(0.0f))) return;
  const LaneWords words(draw, static_cast<uint32_t>(first));
  const NormalPair<Pack> xy = normals_of(words, 0), z = normals_of(words, 1);
  const Triple<Pack> scale = triple_of(LaneRows<3>(g.scales, first, used));
  const Triple<Pack> offset = covariance_times(quaternion_of(LaneRows<4>(g.quats, first, used)), scale,
                                               {xy.first * gate, xy.second * gate, z.first * gate});
  LaneRows<3> means(g.means, first, used);
  const Triple<Pack> mean = triple_of(means) + offset;
  interleave_3(mean.x, mean.y, mean.z, means.values);
  means.store(g.means, first, used);
}

}  // namespace

void add_noise(const Gaussians& g, const Draw& draw, float strength) {
  each_chunk(g.count, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLanes) {
      shake(g, draw, Pack(strength), i, static_cast<int>(end - i < kLanes ? end - i : kLanes));
    }
  });
}

LG_END
