// Costs and distances of all rows of a call: chunk by chunk, obstacle by obstacle.
#include <new>

#include "meshes/cpu_sweep.h"

LG_BEGIN_ENGINE(meshes)

namespace {

void add_winners(Chunk& chunk) {
  for (int i = 0; i < chunk.count; ++i) {
    const WinningSample& winner = chunk.rows[i].winner;
    if (winner.obstacle < 0) continue;
    add_moments(moments_of(chunk, winner.obstacle), chunk.out->upstream[chunk.numbers[i]], winner.gradient,
                winner.place);
  }
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
    finish_row(chunk.rows[i], settings);
    store_row(chunk.rows[i], settings, *chunk.out, chunk.numbers[i]);
  }
}

// Rows begin .. end - 1 of the order, in runs of one environment.
void evaluate_rows(const World& world, const Spheres& spheres, const Order& order, int64_t begin, int64_t end,
                   Chunk& chunk) {
  while (begin < end) {
    const int environment = environment_of(spheres, order[begin]);
    chunk.count = 0;
    for (; begin < end && environment_of(spheres, order[begin]) == environment; ++begin) {
      chunk.numbers[chunk.count] = order[begin];
      // In place: a copy would wait for the numbers just written.
      new (&chunk.rows[chunk.count++]) QueryRow(row_of(spheres, *chunk.settings, order[begin]));
    }
    evaluate_chunk(chunk, world.obstacles + world.begin[environment], world.obstacles + world.begin[environment + 1]);
  }
}

// Of rows that are off nothing is seen.
void store_off(const Spheres& spheres, const Settings& settings, const Outputs& out) {
  for (int64_t i = 0, all = row_count(spheres); i < all; ++i) {
    if (!sphere_at(spheres.rows, i).on()) store_row(row_of(spheres, settings, i), settings, out, i);
  }
}

// Each chunk's sums are added in the order of the chunks, so that they do not depend on the number of threads.
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
  const int64_t chunks = (order.count + kChunk - 1) / kChunk;
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
    chunk.costs = wants_costs(out);
    chunk.closest = wants_closest(out);
    chunk.moments = moments == nullptr ? nullptr : moments + c * values;
    const int64_t begin = int64_t{c} * kChunk;
    evaluate_rows(world, spheres, order, begin, begin + kChunk < order.count ? begin + kChunk : order.count, chunk);
  });
  if (order.count < row_count(spheres)) store_off(spheres, settings, out);
  if (out.moments != nullptr) add_chunk_moments(moments, chunks, values, out.moments);
  clock.stage(kQueryStage);
}

LG_END
