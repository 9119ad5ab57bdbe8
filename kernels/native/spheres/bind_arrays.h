// Conversion of the named arrays of a Python call to the structs of params.h, for CPU and CUDA. The Python package
// checks every array before the call.
#pragma once

#include <nanobind/nanobind.h>

#include "common/bind_arrays.h"
#include "spheres/params.h"

LG_BEGIN_ENGINE(spheres)

inline Scene make_scene(const nanobind::kwargs& arrays) {
  Scene s{};
  const CallArray<float> radii(arrays["radii"]), background(arrays["background"]);
  s.count = static_cast<int32_t>(radii.shape(0));
  s.channels = static_cast<int32_t>(background.shape(0));
  s.positions = find<float>(arrays, "positions");
  s.colors = find<float>(arrays, "colors");
  s.radii = radii.data();
  s.opacities = find<float>(arrays, "opacities");
  s.background = background.data();
  return s;
}

inline Outputs make_outputs(const nanobind::kwargs& arrays) {
  Outputs o{};
  o.color = find<float>(arrays, "color");
  o.color_levels = find<uint8_t>(arrays, "color_levels");
  o.alpha = find<float>(arrays, "alpha");
  o.depth = find<float>(arrays, "depth");
  o.info = find<float>(arrays, "info");
  o.ids = find<int32_t>(arrays, "ids");
  o.weights = find<float>(arrays, "weights");
  o.hits = find<int32_t>(arrays, "hits");
  o.blend = find<float>(arrays, "blend");
  o.stop = find<int32_t>(arrays, "stop");
  return o;
}

inline Upstream make_upstream(const nanobind::kwargs& arrays) {
  Upstream u{};
  u.color = find<float>(arrays, "color");
  u.info = find<float>(arrays, "info");
  u.blend = find<float>(arrays, "blend");
  u.stop = find<int32_t>(arrays, "stop");
  u.ids = find<int32_t>(arrays, "ids");
  u.d_color = find<float>(arrays, "d_color");
  u.d_alpha = find<float>(arrays, "d_alpha");
  u.d_depth = find<float>(arrays, "d_depth");
  return u;
}

inline Gradients make_gradients(const nanobind::kwargs& arrays) {
  Gradients g{};
  g.positions = find<float>(arrays, "to_positions");
  g.colors = find<float>(arrays, "to_colors");
  g.radii = find<float>(arrays, "to_radii");
  g.opacities = find<float>(arrays, "to_opacities");
  g.background = find<float>(arrays, "to_background");
  g.touched = find<int32_t>(arrays, "touched");
  g.camera = find<double>(arrays, "to_camera");
  return g;
}

LG_END
