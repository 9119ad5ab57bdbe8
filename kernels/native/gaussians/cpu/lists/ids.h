// The Gaussian with the largest weight in each pixel of a view, found in the state that its forward pass left.
#pragma once

#include "gaussians/cpu/engine.h"

namespace lumigrad::gaussians {

// Writes the view's part of `ids` [V, H, W]: numbers of Gaussians within their scene, the nearest of equal weights, and
// -1 where none was blended. Sets Workspace::milliseconds.
using FindIds = void (*)(const View* views, int view, const Settings&, const Scene&, int32_t* ids, Pass&, Workspace&);

FindIds cpu_ids(Isa isa);

}  // namespace lumigrad::gaussians
