// The sign of distances to meshes by rays or winding numbers, for points in the mesh's frame relative to its centre.
#pragma once

#include <cstdint>

#include "common/math/number.h"
#include "meshes/params.h"

LG_BEGIN_ENGINE(meshes)

// inside[i] = 1 if at least two of the rays along +x, +y and +z from point i meet the back of a face first (spec
// section 2).
void inside_by_rays(const Tree& tree, const float* x, const float* y, const float* z, int count, uint8_t* inside);
// inside[i] = 1 if the generalised winding number of point i exceeds 1/2.
void inside_by_winding(const Tree& tree, const float* x, const float* y, const float* z, int count, uint8_t* inside);

LG_END
