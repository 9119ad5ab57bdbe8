// A view of Gaussians on the CPU.
#pragma once

#include "gaussians/cpu/engine.h"
#include "serving/render.h"

namespace lumigrad::serving {

// Adds the times of the stages to `milliseconds`, of kRenderStages.
void draw_view(const GaussianRender& render, int view, const gaussians::Scene& scene, const GaussianTargets& targets,
               gaussians::Pass& pass, gaussians::Workspace& workspace, double* milliseconds);

}  // namespace lumigrad::serving
