// Random words and normals by row, and noise on the means of Gaussians.
#include <cstring>

#include "common/cpu/pack.h"
#include "common/cpu/transpose.h"
#include "density/cpu/loops.h"
#include "density/math/noise.h"
#include "density/math/random.h"

LG_BEGIN_ENGINE(density)
namespace {

// The words of rows [first, first + 16), word k of lane i at [k][i].
struct LaneWords {
  alignas(64) uint32_t words[4][kLanes];

  LG_INLINE LaneWords(const Draw& draw, uint32_t first) {
    for (int i = 0; i < kLanes; ++i) {
      const Words w = words_of(draw, first + static_cast<uint32_t>(i));
      words[0][i] = w.a;
      words[1][i] = w.b;
      words[2][i] = w.c;
      words[3][i] = w.d;
    }
  }
};

// Converts words 2 k and 2 k + 1 to a pair of normals.
LG_INLINE NormalPair<Pack> normals_of(const LaneWords& lanes, int k) {
  alignas(64) float unit[kLanes], turn[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    unit[i] = unit_of(lanes.words[2 * k][i]);
    turn[i] = turn_of(lanes.words[2 * k + 1][i]);
  }
  return normal_pair(Pack::load(unit), Pack::load(turn));
}

// Calls body(first, used, words) for each sixteen rows.
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

// Noise on the means of Gaussians.
namespace {

using gaussians::Triple;

// Rows [first, first + used) of [N, width], aligned; lanes past the last row are 0.
template <int kWidth>
struct LaneRows {
  alignas(64) float values[kWidth * kLanes];

  LG_INLINE LaneRows(const float* array, int64_t first, int used) {
    if (used == kLanes) {
      std::memcpy(values, array + kWidth * first, sizeof(values));
      return;
    }
    std::memset(values, 0, sizeof(values));
    std::memcpy(values, array + kWidth * first, sizeof(float) * kWidth * static_cast<std::size_t>(used));
  }
  LG_INLINE void store(float* array, int64_t first, int used) const {
    if (used == kLanes) {
      std::memcpy(array + kWidth * first, values, sizeof(values));
      return;
    }
    std::memcpy(array + kWidth * first, values, sizeof(float) * kWidth * static_cast<std::size_t>(used));
  }
};

LG_INLINE Triple<Pack> triple_of(const LaneRows<3>& rows) {
  Triple<Pack> t;
  deinterleave_3(rows.values, t.x, t.y, t.z);
  return t;
}

LG_INLINE gaussians::Quaternion<Pack> quaternion_of(const LaneRows<4>& rows) {
  alignas(64) float c[4][kLanes];
  for (int i = 0; i < kLanes; ++i) {
    for (int k = 0; k < 4; ++k) c[k][i] = rows.values[4 * i + k];
  }
  return {Pack::load(c[0]), Pack::load(c[1]), Pack::load(c[2]), Pack::load(c[3])};
}

void shake(const Gaussians& g, const Draw& draw, Pack strength, int64_t first, int used) {
  const Pack gate = strength * noise_gate(Pack::load(LaneRows<1>(g.opacities, first, used).values));
  if (!any(gate > Pack(0.0f))) return;
  const LaneWords words(draw, static_cast<uint32_t>(first));
  const NormalPair<Pack> xy = normals_of(words, 0), z = normals_of(words, 1);
  const Triple<Pack> scale = triple_of(LaneRows<3>(g.scales, first, used));
  const Triple<Pack> offset = covariance_times(quaternion_of(LaneRows<4>(g.quats, first, used)), scale,
                                               {xy.first * gate, xy.second * gate, z.first * gate});
  LaneRows<3> means(g.means, first, used);
  const Triple<Pack> mean = triple_of(means) + offset;
  interleave_3(mean.x, mean.y, mean.z, means.values);
  means.store(g.means, first, used);
}

}  // namespace

void add_noise(const Gaussians& g, const Draw& draw, float strength) {
  each_chunk(g.count, [&](int, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i += kLanes) {
      shake(g, draw, Pack(strength), i, static_cast<int>(end - i < kLanes ? end - i : kLanes));
    }
  });
}

LG_END
