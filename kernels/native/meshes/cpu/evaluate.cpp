// Costs and distances of all rows of a call: chunk by chunk, obstacle by obstacle.
#include <new>

#include "meshes/cpu/order.h"
#include "meshes/cpu/probes.h"
#include "meshes/math/sweep.h"

LG_BEGIN_ENGINE(meshes)
namespace {

// A chunk of neighbouring rows of one environment: samples are added to its rows obstacle by obstacle.
struct Chunk {
  const Settings* settings;
  const Outputs* out;
  bool costs, closest;  // Whether each is requested.
  int count;
  int64_t numbers[kChunk];
  QueryRow rows[kChunk];
  Sight first[kChunk];   // The centres' results for the current obstacle,
  float looked[kChunk];  // and their search radii.
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

// Adds the result of probe `i` to row `r`.
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

// Searches from the centres.
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

// Sweeps of a chunk's rows past one obstacle: all walkers take their next sample together.

template <class Walk>
struct Walker {
  int row;
  Walk walk;
};

// Steps all walkers once; walkers that have finished leave.
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
    if (walker.walk.advance(chunk.rows[walker.row], settings, p.seen[k], toward)) walkers[left++] = walker;
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

void add_winners(Chunk& chunk) {
  for (int i = 0; i < chunk.count; ++i) {
    const WinningSample& winner = chunk.rows[i].winner;
    if (winner.obstacle < 0) continue;
    add_moments(moments_of(chunk, winner.obstacle), chunk.out->upstream[chunk.numbers[i]], winner.gradient,
                winner.place);
  }
}

// The number of rows by which spheres and results are prefetched: neighbours in the order are far apart in memory.
inline constexpr int kRowsAhead = 16;

LG_INLINE void fetch_results(const Outputs& out, int64_t row) {
  if (out.distance != nullptr) __builtin_prefetch(out.distance + row, 1);
  if (out.normal != nullptr) __builtin_prefetch(out.normal + 3 * row, 1);
  if (out.closest != nullptr) __builtin_prefetch(out.closest + 3 * row, 1);
  if (out.face != nullptr) __builtin_prefetch(out.face + row, 1);
}

void evaluate_chunk(Chunk& chunk, const Obstacle* begin, const Obstacle* end) {
  const Settings& settings = *chunk.settings;
  if (settings.mode == Mode::curobo_field) {
    for (int i = 0; i < chunk.count; ++i) {
      chunk.rows[i].field = field_floor(chunk.rows[i].own.radius, settings.reach, begin, end);
    }
  }
  for (const Obstacle* obstacle = begin; obstacle != end; ++obstacle) {
    look_from_centres(chunk, *obstacle);
    if (settings.sweep && chunk.costs) sweep(chunk, *obstacle);
  }
  if (chunk.moments != nullptr && settings.maximum) add_winners(chunk);
  for (int i = 0; i < chunk.count; ++i) {
    if (i + kRowsAhead < chunk.count) fetch_results(*chunk.out, chunk.numbers[i + kRowsAhead]);
    finish_row(chunk.rows[i], settings);
    store_row(chunk.rows[i], settings, *chunk.out, chunk.numbers[i]);
  }
}

// Evaluates rows begin .. end - 1 of the order, in runs of one environment. Not inlined or cloned: specialised for the
// thread-local chunk, the function would look up its address for each row.
__attribute__((noinline, noclone)) void evaluate_rows(const World& world, const Spheres& spheres, const Order& order,
                                                      int64_t begin, int64_t end, Chunk& chunk) {
  while (begin < end) {
    const int environment = environment_of(spheres, order[begin]);
    chunk.count = 0;
    for (; begin < end && environment_of(spheres, order[begin]) == environment; ++begin) {
      if (begin + kRowsAhead < end) __builtin_prefetch(spheres.rows + 4 * order[begin + kRowsAhead]);
      chunk.numbers[chunk.count] = order[begin];
      // Rows are constructed in place: a copy would stall on the values just written.
      new (&chunk.rows[chunk.count++]) QueryRow(row_of(spheres, *chunk.settings, order[begin]));
    }
    evaluate_chunk(chunk, world.obstacles + world.begin[environment], world.obstacles + world.begin[environment + 1]);
  }
}

// Stores the results of disabled rows.
void store_off(const Spheres& spheres, const Settings& settings, const Outputs& out) {
  for (int64_t i = 0, all = row_count(spheres); i < all; ++i) {
    if (!sphere_at(spheres.rows, i).on()) store_row(row_of(spheres, settings, i), settings, out, i);
  }
}

// Adds the chunks' sums in the order of the chunks, so that the result is independent of the number of threads.
void add_chunk_moments(const double* parts, int64_t chunks, int64_t values, double* sums) {
  for (int64_t c = 0; c < chunks; ++c) {
    for (int64_t i = 0; i < values; ++i) sums[i] += parts[c * values + i];
  }
}

}  // namespace

void evaluate(const World& world, const Spheres& spheres, const Settings& settings, const Outputs& out, Workspace& w) {
  StageClock clock(w.milliseconds);
  const Order order = order_rows(spheres, w);
  clock.stage(kSortStage);
  const int64_t length = chunk_rows(world.listed), chunks = (order.count + length - 1) / length;
  const int64_t values = int64_t{kMomentDoubles} * world.listed;
  double* moments = nullptr;
  if (out.moments != nullptr) {
    moments = w.moments.ensure<double>(chunks * values);
    memset(moments, 0, chunks * values * sizeof(double));
  }
  for_parts(static_cast<int>(chunks), [&](int c) {
    static thread_local Chunk chunk;
    chunk.settings = &settings;
    chunk.out = &out;
    chunk.costs = needs_costs(out);
    chunk.closest = needs_closest(out);
    chunk.moments = moments == nullptr ? nullptr : moments + c * values;
    const int64_t begin = c * length, end = begin + length;
    evaluate_rows(world, spheres, order, begin, end < order.count ? end : order.count, chunk);
  });
  if (order.count < row_count(spheres)) store_off(spheres, settings, out);
  if (out.moments != nullptr) add_chunk_moments(moments, chunks, values, out.moments);
  clock.stage(kQueryStage);
}

LG_END
