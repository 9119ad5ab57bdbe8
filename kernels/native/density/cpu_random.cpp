// Random words and normals by row.
#include "density/cpu_lanes.h"
#include "density/cpu_loops.h"

LG_BEGIN_ENGINE(density)
namespace {

// Calls body(first, used, words) for sixteen rows after sixteen.
template <class Body>
LG_INLINE void each_sixteen(const Draw& draw, uint32_t first, int64_t count, const Body& body) {
  each_chunk(count, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLanes) {
      body(i, static_cast<int>(end - i < kLanes ? end - i : kLanes), LaneWords(draw, first + static_cast<uint32_t>(i)));
    }
  });
}

}  // namespace

void random_words(const Draw& draw, uint32_t first, int64_t count, uint32_t* words) {
  each_sixteen(draw, first, count, [&](int64_t row, int used, const LaneWords& lanes) {
    for (int i = 0; i < used; ++i) {
      for (int k = 0; k < 4; ++k) words[4 * (row + i) + k] = lanes.words[k][i];
    }
  });
}

void normals(const Draw& draw, uint32_t first, int64_t count, float* values) {
  each_sixteen(draw, first, count, [&](int64_t row, int used, const LaneWords& lanes) {
    const NormalPair<Pack> ab = normals_of(lanes, 0), cd = normals_of(lanes, 1);
    alignas(64) float z[4][kLanes];
    ab.first.store(z[0]);
    ab.second.store(z[1]);
    cd.first.store(z[2]);
    cd.second.store(z[3]);
    for (int i = 0; i < used; ++i) {
      for (int k = 0; k < 4; ++k) values[4 * (row + i) + k] = z[k][i];
    }
  });
}

LG_END
