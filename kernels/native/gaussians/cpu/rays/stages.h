// The stages of a view along rays that differ from those on the film.
#pragma once

#include "gaussians/cpu/rays/field.h"

LG_BEGIN_ENGINE(gaussians)

void bin_rays(const ViewData& data, const RayField& field, const uint64_t* pairs, const Segments& segments,
              ViewState& state, Workspace& workspace);
void draw_rays(const View* views, int view, const Settings& settings, const Scene& scene, const Outputs& outputs,
               const ViewData& data, const RayField& field, Workspace& workspace);

LG_END
