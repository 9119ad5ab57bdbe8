// A chunk of neighbouring rows of one environment: samples are added to its rows obstacle by obstacle.
#pragma once

#include "meshes/cpu_order.h"
#include "meshes/cpu_probes.h"

LG_BEGIN_ENGINE(meshes)

struct Chunk {
  const Settings* settings;
  const Outputs* out;
  bool costs, closest;  // Wanted.
  int count;
  int64_t numbers[kChunk];
  QueryRow rows[kChunk];
  Sight first[kChunk];   // What the centres see of the obstacle at hand,
  float looked[kChunk];  // and how far they looked.
  double* moments;       // [listed, 12] of this chunk
  Probes probes;
};

// sums += upstream * (g, y g^T).
inline void add_moments(double* sums, float upstream, Vec<float> gradient, Vec<float> place) {
  const double g[3] = {gradient.x, gradient.y, gradient.z}, y[3] = {place.x, place.y, place.z};
  for (int i = 0; i < 3; ++i) {
    sums[i] += upstream * g[i];
    for (int j = 0; j < 3; ++j) sums[3 + 3 * i + j] += upstream * y[i] * g[j];
  }
}

inline double* moments_of(const Chunk& chunk, int32_t obstacle) {
  return chunk.moments + int64_t{kMomentDoubles} * obstacle;
}

// Adds what probe `i` saw to row `r`.
inline void add_probe(Chunk& chunk, int r, const Obstacle& obstacle, int i, float fraction, Toward toward) {
  const Settings& settings = *chunk.settings;
  const Vec<float> place = chunk.probes.at(i);
  Vec<float> gradient;
  const bool counts =
      add_sample(chunk.rows[r], settings, obstacle, chunk.probes.seen[i], place, fraction, toward, gradient);
  if (counts && chunk.moments != nullptr && !settings.maximum) {
    add_moments(moments_of(chunk, obstacle.index), chunk.out->upstream[chunk.numbers[r]], gradient, place);
  }
}

// What the centres see.
inline void look_from_centres(Chunk& chunk, const Obstacle& obstacle) {
  const Settings& settings = *chunk.settings;
  Probes& p = chunk.probes;
  p.recent = Recent();
  p.count = 0;
  for (int i = 0; i < chunk.count; ++i) {
    chunk.looked[i] = reach_of_centre(chunk.rows[i], settings, chunk.costs, chunk.closest);
    p.add(to_object(obstacle, chunk.rows[i].own.centre), chunk.looked[i]);
  }
  probe(obstacle, settings.mode, p);
  for (int i = 0; i < chunk.count; ++i) {
    chunk.first[i] = p.seen[i];
    if (chunk.closest) keep_closest(chunk.rows[i], obstacle, p.seen[i], p.at(i));
    if (settings.mode == Mode::curobo_field) {
      keep_field(chunk.rows[i], obstacle, p.seen[i], settings.reach);
      continue;
    }
    if (chunk.costs) add_probe(chunk, i, obstacle, i, 0.0f, Toward::none);
  }
}

LG_END
