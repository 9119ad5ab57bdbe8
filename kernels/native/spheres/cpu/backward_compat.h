// The backward pass of compat on the CPU.
#pragma once

#include "spheres/cpu/tiles.h"

LG_BEGIN_ENGINE(spheres)

// Only tracked spheres contribute, and each pixel lists them: blocks of 4x4 pixels go through their lists place by
// place, 16 pairs of a pixel and a sphere at a time. Each thread sums a band of rows of blocks in rows of its own.
void backward_compat(const Camera& camera, const Settings& settings, const Scene& scene, const Upstream& up,
                     const Gradients& gradients, uint64_t before, Workspace& workspace);

LG_END
