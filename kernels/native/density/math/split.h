// The two children of a split row: smaller, with positions sampled from the row.
#pragma once

#include "density/math/noise.h"
#include "density/math/random.h"
#include "density/math/share.h"

LG_BEGIN_ENGINE(density)

inline constexpr float kShrink = 1.6f, kLogShrink = 0.470003629f;

LG_INLINE gaussians::Triple<float> normal_triple(const Draw& draw, uint32_t row) {
  const Words w = words_of(draw, row);
  const NormalPair<float> xy = normal_pair(unit_of(w.a), turn_of(w.b)), z = normal_pair(unit_of(w.c), turn_of(w.d));
  return {xy.first, xy.second, z.first};
}

// The offset of a child's mean from its parent's mean.
LG_INLINE gaussians::Triple<float> gaussian_offset(const float* quat, const float* scale,
                                                   const gaussians::Triple<float>& normal) {
  const gaussians::Triple<float> axes = {exp_bounded(scale[0]), exp_bounded(scale[1]), exp_bounded(scale[2])};
  const auto rotation = gaussians::rotation_of(gaussians::normalized<float>({quat[0], quat[1], quat[2], quat[3]}).q);
  return rotation * gaussians::times(axes, normal);
}

// The offset of the first child's centre from the sphere's: half its radius in a random direction. The second child
// lies on the opposite side.
LG_INLINE gaussians::Triple<float> sphere_offset(float radius, const gaussians::Triple<float>& normal) {
  const float length2 = gaussians::dot(normal, normal);
  return gaussians::scaled(normal, 0.5f * radius / sqrt(max(length2, 1e-30f)));
}

LG_INLINE void move(float* mean, const gaussians::Triple<float>& by, float sign) {
  mean[0] += sign * by.x;
  mean[1] += sign * by.y;
  mean[2] += sign * by.z;
}

// Turns the two copies of split row `number` of the list into children.
LG_INLINE void make_children(const Children& c, const Draw& first_draw, const Draw& second_draw, int64_t number) {
  const int64_t first = c.first + number, second = first + c.count;
  const int32_t parent = c.sources[first];
  const auto normal = normal_triple(first_draw, static_cast<uint32_t>(parent));
  if (c.quats == nullptr) {
    const auto offset = sphere_offset(c.sizes[first], normal);
    move(c.means + 3 * first, offset, 1.0f);
    move(c.means + 3 * second, offset, -1.0f);
    c.sizes[first] = c.sizes[second] = c.sizes[first] / kShrink;
    return;
  }
  const float *quat = c.quats + 4 * int64_t{parent}, *scale = c.sizes + 3 * first;
  move(c.means + 3 * first, gaussian_offset(quat, scale, normal), 1.0f);
  const auto other = normal_triple(second_draw, static_cast<uint32_t>(parent));
  move(c.means + 3 * second, gaussian_offset(quat, scale, other), 1.0f);
  for (int k = 0; k < 3; ++k) c.sizes[3 * first + k] = c.sizes[3 * second + k] = scale[k] - kLogShrink;
  if (!c.revise_opacity) return;
  const double depth = 0.5 * depth_of_logit(static_cast<double>(c.opacities[first]));
  c.opacities[first] = c.opacities[second] = static_cast<float>(logit_of_depth(depth));
}

LG_END
