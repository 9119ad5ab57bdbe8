// Sweeps of the rows of a chunk past one obstacle: all walkers take their next sample together.
#pragma once

#include "meshes/cpu_chunk.h"
#include "meshes/math_walk.h"

LG_BEGIN_ENGINE(meshes)

template <class Walk>
struct Walker {
  int row;
  Walk walk;
};

// One step of all walkers; those that have finished leave.
template <class Walk>
inline int step(Chunk& chunk, const Obstacle& obstacle, Toward toward, Walker<Walk>* walkers, int count) {
  const Settings& settings = *chunk.settings;
  Probes& p = chunk.probes;
  p.count = 0;
  for (int k = 0; k < count; ++k) {
    const QueryRow& row = chunk.rows[walkers[k].row];
    const Vec<float> neighbour = toward == Toward::before ? row.before : row.after;
    const Vec<float> place = sample_at(row.own.centre, walkers[k].walk.fraction(), neighbour);
    p.add(to_object(obstacle, place), walkers[k].walk.reach(row, settings));
  }
  probe(obstacle, settings.mode, p);
  int left = 0;
  for (int k = 0; k < count; ++k) {
    Walker<Walk>& walker = walkers[k];
    add_probe(chunk, walker.row, obstacle, k, walker.walk.fraction(), toward);
    if (walker.walk.told(chunk.rows[walker.row], settings, p.seen[k], toward)) walkers[left++] = walker;
  }
  return left;
}

template <class Walk>
inline void sweep_toward(Chunk& chunk, const Obstacle& obstacle, Toward toward) {
  static thread_local Walker<Walk> walkers[kChunk];
  int count = 0;
  for (int i = 0; i < chunk.count; ++i) {
    Walker<Walk> next = {i, {}};
    if (next.walk.start(chunk.rows[i], *chunk.settings, chunk.first[i], chunk.looked[i], toward)) {
      walkers[count++] = next;
    }
  }
  while (count > 0) count = step(chunk, obstacle, toward, walkers, count);
}

inline void sweep(Chunk& chunk, const Obstacle& obstacle) {
  for (const Toward toward : {Toward::before, Toward::after}) {
    if (chunk.settings->mode == Mode::exact) {
      sweep_toward<ExactWalk>(chunk, obstacle, toward);
    } else if (obstacle.shape == Shape::mesh) {
      sweep_toward<CuroboWalk>(chunk, obstacle, toward);
    } else {
      sweep_toward<CuroboCuboidWalk>(chunk, obstacle, toward);
    }
  }
}

LG_END
