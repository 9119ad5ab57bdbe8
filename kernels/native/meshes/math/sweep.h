// The samples of a sweep on the half segment from a centre toward the centre of an adjacent time step. A walker returns
// the next sample until it has none; after each, its caller passes the inflated sphere's distance to the obstacle.
#pragma once

#include "meshes/math/query.h"
#include "meshes/math/vector.h"

LG_BEGIN_ENGINE(meshes)

inline constexpr int kMaxHalvings = 8;

// The factor by which the free balls of a point, a sphere of radius 0, must overlap: between balls that only touch, a
// point could pass through a thin sheet without a cost.
inline constexpr float kOverlap = 1.000004f;

// Exact: halves the way from the centre to the middle of the segment until the free balls around the samples cover it.
// If two neighbouring samples are free, their gap is at most the sum of their clearances, so that nothing in between
// can touch (the ball of a sample that touches has size 0 and covers nothing); if one is in contact, the gap is at most
// the inflated radius. The samples do not depend on the direction of time, and lie at dyadic fractions, which do not
// move with the centres, so that derivatives need only their weights.
struct HalvingWalk {
  float half, gap_in_contact;  // Length of half the segment; the inflated radius.
  float overlap;               // 1, or kOverlap for points.
  float left;                  // Clearance (distance - inflated radius) at the left end of the current interval.
  float right[kMaxHalvings + 1];
  int16_t halvings;  // The most halvings; samples = 2^halvings.
  int16_t depth;     // Halvings of the current interval; -1 before the middle of the segment is sampled.
  int32_t position;  // Left end of the current interval, in 2^-halvings of the half segment.
  bool touched;      // Whether some sample is in contact.
  // Whether no sample of the half segment touched, but it was not shown to be free.
  bool exhausted;

  // Starts from the clearance at the centre; returns false if no samples are needed.
  LG_INLINE bool start(float half_length, float clearance, float inflated, int samples) {
    half = half_length;
    gap_in_contact = inflated;
    overlap = inflated > 0.0f ? 1.0f : kOverlap;
    left = clearance;
    halvings = 0;
    while ((1 << halvings) < samples && halvings < kMaxHalvings) ++halvings;
    depth = -1;
    position = 0;
    touched = clearance < 0.0f;
    exhausted = false;
    return half > 0.0f && clearance < half * overlap;
  }
  // The position of the next sample: 0 at the centre, 1 at the neighbour.
  LG_INLINE float fraction() const {
    const int units = depth < 0 ? 1 << halvings : position + (1 << (halvings - depth - 1));
    return 0.5f * static_cast<float>(units) / static_cast<float>(1 << halvings);
  }
  // Takes the clearance at the sample; returns whether there is another.
  LG_INLINE bool advance(float clearance) {
    right[++depth] = clearance;
    touched |= clearance < 0.0f;
    while (true) {
      const float gap = half / static_cast<float>(1 << depth);
      const bool is_free = left >= 0.0f && right[depth] >= 0.0f;
      const bool covered = is_free ? gap * overlap <= left + right[depth] : gap <= gap_in_contact;
      if (!covered && depth < halvings) return true;
      exhausted |= !covered && is_free;
      position += 1 << (halvings - depth);
      if (position >= 1 << halvings) {
        exhausted &= !touched;
        return false;
      }
      left = right[depth];
      // The next interval ends where its parent ends.
      int zeros = 0;
      while ((position >> zeros & 1) == 0) ++zeros;
      const int next = halvings - zeros;
      right[next] = right[next - 1];
      depth = static_cast<int16_t>(next);
    }
  }
};

// The results of a sample for a walker besides the penetration d = inflated radius - distance.
struct Seen {
  float depth;  // d
  bool found;   // Within the search radius `cap`.
};

// A head-on approach to a flat face ends where the depth is 0 up to rounding (spec section 6.1, iii), which is not a
// contact, whatever the sign of the depth.
inline constexpr float kTouch = 1e-6f;

// A march past a mesh as in cuRobo (spec section 6.1), forward and backward in time; `limit` is the search radius if
// nothing is found.
struct CuroboMarch {
  float half, travelled;
  int32_t steps;

  static LG_INLINE float first_jump(Seen seen, float cap) { return !seen.found ? cap : abs(seen.depth); }
  LG_INLINE bool start(float half_length, Seen seen, float cap, int sweep_steps) {
    half = half_length;
    travelled = first_jump(seen, cap);
    steps = sweep_steps;
    return steps > 0 && travelled < half;
  }
  LG_INLINE float fraction() const { return travelled / (2.0f * half); }
  LG_INLINE bool advance(Seen seen, float inflated, float cap, bool forward) {
    if (!seen.found) {
      travelled += cap;
    } else if (seen.depth > kTouch * inflated) {
      travelled += forward ? max(seen.depth - inflated, inflated) : seen.depth;
    } else {
      travelled += max(-seen.depth - inflated, inflated);
    }
    return --steps > 0 && travelled < half;
  }
};

// A march past a cuboid or a grid as in cuRobo (spec section 8).
struct CuroboCuboidMarch {
  float length, travelled;
  int32_t steps;

  // `distance`: the unsigned distance of the sphere's centre from the surface.
  LG_INLINE bool start(float whole, float distance, float inflated, int sweep_steps, bool forward) {
    length = whole;
    steps = sweep_steps;
    travelled = max(distance - inflated, inflated);
    return steps > 0 && distance < (forward ? length : length - 2.0f * inflated) && travelled < 0.5f * length;
  }
  LG_INLINE float fraction() const { return travelled / length; }
  LG_INLINE bool advance(float distance, float inflated) {
    travelled += max(distance, inflated);
    return --steps > 0 && travelled < 0.5f * length;
  }
};

// The walkers above behind one interface:
//   start(...)     returns whether there is a first sample, given the result of the centre, searched within `looked`
//   fraction()     returns the position of the sample on the way to the adjacent centre
//   reach(...)     returns the search radius of the sample
//   advance(...)   takes the result of the sample; returns whether there is another

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
  LG_INLINE bool advance(QueryRow& row, const Settings& settings, const Sight& sight, Toward) {
    const bool more = walk.advance(clearance_of(sight.found, sight.at.value, reach(row, settings), row.inflated));
    row.exhausted |= !more && walk.exhausted;
    return more;
  }
};

// The walk past a mesh.
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
  LG_INLINE bool advance(QueryRow& row, const Settings& settings, const Sight& sight, Toward toward) {
    return march.advance(seen(row, sight), row.inflated, reach(row, settings), toward == Toward::after);
  }
  static LG_INLINE Seen seen(const QueryRow& row, const Sight& sight) {
    return {row.inflated - sight.at.value, sight.found};
  }
};

// The walk past a cuboid or a grid.
struct CuroboCuboidWalk {
  CuroboCuboidMarch march;

  LG_INLINE bool start(const QueryRow& row, const Settings& settings, const Sight& sight, float, Toward toward) {
    const float half = half_toward(row, toward);
    return half > 0.0f &&
           march.start(2.0f * half, abs(sight.at.value), row.inflated, settings.samples, toward == Toward::after);
  }
  LG_INLINE float fraction() const { return march.fraction(); }
  LG_INLINE float reach(const QueryRow&, const Settings&) const { return INFINITY; }
  LG_INLINE bool advance(QueryRow& row, const Settings&, const Sight& sight, Toward) {
    return march.advance(abs(sight.at.value), row.inflated);
  }
};

LG_END
