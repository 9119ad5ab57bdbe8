// The walkers of math_sweep.h behind one face:
//   start(...)     whether there is a sample to look at, after what the centre saw, having looked as far as `looked`
//   fraction()     where it lies on the way to the neighbour in time
//   reach(...)     how far it looks
//   told(...)      whether there is another after what it saw
#pragma once

#include "meshes/math_query.h"
#include "meshes/math_sweep.h"

LG_BEGIN_ENGINE(meshes)

LG_INLINE float half_toward(const QueryRow& row, Toward toward) {
  return toward == Toward::before ? row.half_before : row.half_after;
}

struct ExactWalk {
  HalvingWalk walk;

  LG_INLINE bool start(const QueryRow& row, const Settings& settings, const Sight& sight, float looked, Toward toward) {
    const float clearance = clearance_of(sight.found, sight.at.value, looked, row.inflated);
    return walk.start(half_toward(row, toward), clearance, row.inflated, settings.samples);
  }
  LG_INLINE float fraction() const { return walk.fraction(); }
  LG_INLINE float reach(const QueryRow& row, const Settings&) const { return row.inflated + walk.half; }
  LG_INLINE bool told(QueryRow& row, const Settings& settings, const Sight& sight, Toward) {
    const bool more = walk.told(clearance_of(sight.found, sight.at.value, reach(row, settings), row.inflated));
    row.exhausted |= !more && walk.exhausted;
    return more;
  }
};

// Past a mesh.
struct CuroboWalk {
  CuroboMarch march;

  LG_INLINE bool start(const QueryRow& row, const Settings& settings, const Sight& sight, float looked, Toward toward) {
    const float half = half_toward(row, toward);
    return half > 0.0f && march.start(half, seen(row, sight), looked, settings.samples);
  }
  LG_INLINE float fraction() const { return march.fraction(); }
  LG_INLINE float reach(const QueryRow& row, const Settings& settings) const {
    return search_radius_curobo(row.inflated, settings.reach);
  }
  LG_INLINE bool told(QueryRow& row, const Settings& settings, const Sight& sight, Toward toward) {
    return march.told(seen(row, sight), row.inflated, reach(row, settings), toward == Toward::after);
  }
  static LG_INLINE Seen seen(const QueryRow& row, const Sight& sight) {
    return {row.inflated - sight.at.value, sight.found};
  }
};

// Past a cuboid or a grid.
struct CuroboCuboidWalk {
  CuroboCuboidMarch march;

  LG_INLINE bool start(const QueryRow& row, const Settings& settings, const Sight& sight, float, Toward toward) {
    const float half = half_toward(row, toward);
    return half > 0.0f &&
           march.start(2.0f * half, abs(sight.at.value), row.inflated, settings.samples, toward == Toward::after);
  }
  LG_INLINE float fraction() const { return march.fraction(); }
  LG_INLINE float reach(const QueryRow&, const Settings&) const { return INFINITY; }
  LG_INLINE bool told(QueryRow& row, const Settings&, const Sight& sight, Toward) {
    return march.told(abs(sight.at.value), row.inflated);
  }
};

LG_END
