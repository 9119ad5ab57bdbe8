// The Gaussians that a view visited, found in the state that its forward pass left.
#pragma once

#include "gaussians/cpu/engine.h"
#include "gaussians/visits.h"

namespace lumigrad::gaussians {

// Writes the view's part of `visits`, for ellipses. Sets Workspace::milliseconds.
using FindVisits = void (*)(const View* views, int view, const Settings&, const Scene&, const Visits& visits, Pass&,
                            Workspace&);

FindVisits cpu_visits(Isa isa);

}  // namespace lumigrad::gaussians
