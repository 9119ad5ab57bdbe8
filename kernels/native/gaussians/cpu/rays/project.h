// Gaussians along rays: their records and bounds, and their gradients from the sums over pixels.
#pragma once

#include "gaussians/cpu/rays/field.h"
#include "gaussians/cpu/sensor.h"

LG_BEGIN_ENGINE(gaussians)

// Sets the records and bounds of sixteen Gaussians, one per pack; the first `used` exist. Unless the bounds are
// gsplat's on a film, also sets the rectangles of pixels that they may reach.
void project_rays(const SensorPlace& at, const RayField& field, const Gaussian<Pack>& gaussian, int used,
                  Projected<Pack>& g, Pack (&records)[kRecordFloats], Pack (&bounds)[kRecordFloats]);

// The gradients of the Gaussians of `mask`, given the sums of their pixels (see ray_row) by field, and the gradients of
// depth and 1 / depth.
GaussianGradient<Pack> project_rays_backward(const SensorPlace& at, const Gaussian<Pack>& gaussian, const Pack* fields,
                                             Pack v_depth, Pack v_inverse_depth, unsigned mask,
                                             const SensorSums& view_sums);

LG_END
