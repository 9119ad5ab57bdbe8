// Conversion of a mesh's report for Python.
#pragma once

#include <nanobind/nanobind.h>

#include "common/math/number.h"
#include "meshes/mesh.h"

LG_BEGIN_ENGINE(meshes)

inline nanobind::dict report_dict(const Report& r) {
  nanobind::dict d;
  d["vertices"] = r.vertices;
  d["faces"] = r.faces;
  d["welded_vertices"] = r.welded_vertices;
  d["degenerate_faces"] = r.degenerate_faces;
  d["duplicate_faces"] = r.duplicate_faces;
  d["boundary_edges"] = r.boundary_edges;
  d["nonmanifold_edges"] = r.nonmanifold_edges;
  d["inconsistent_edges"] = r.inconsistent_edges;
  d["closed"] = r.closed;
  d["oriented"] = r.oriented;
  d["low"] = nanobind::make_tuple(r.low[0], r.low[1], r.low[2]);
  d["high"] = nanobind::make_tuple(r.high[0], r.high[1], r.high[2]);
  d["volume"] = r.volume;
  d["area"] = r.area;
  d["components"] = r.components;
  d["overlapping_components"] = r.overlapping_components;
  d["turned_components"] = r.turned_components;
  d["self_intersecting"] = r.self_intersecting;
  return d;
}

LG_END
