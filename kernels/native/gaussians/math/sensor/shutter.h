// Rolling shutters: when a pixel is exposed, where the camera is then, and which pixel a point lands in (sensors spec
// section 5). Points are given in the camera's frame at the start of the exposure, before its translation.
#pragma once

#include "gaussians/math/sensor/lidar.h"
#include "gaussians/math/sensor/slice_motion.h"
#include "gaussians/math/sensor/windshield.h"

LG_BEGIN_ENGINE(gaussians)

// Times are cut to this: a point next to the plane of the camera lands anywhere.
inline constexpr double kLongestTime = 1e4;

LG_INLINE bool is_rolling(const Sensor& s) { return s.shutter != Shutter::global; }
LG_INLINE bool is_by_rows(const Sensor& s) {
  return s.shutter == Shutter::top_to_bottom || s.shutter == Shutter::bottom_to_top;
}

// The time of a pixel, and the derivative of the continuous one with respect to the row or column.
struct Clock {
  double offset, slope;
  bool by_rows, staircase, reversed;

  LG_INLINE Clock(const View& view, const Sensor& s) {
    by_rows = is_by_rows(s);
    staircase = s.continuous == 0;
    reversed = s.shutter == Shutter::bottom_to_top || s.shutter == Shutter::right_to_left;
    const double size = by_rows ? view.height : view.width;
    const double step = size > 1.0 ? 1.0 / (size - 1.0) : 0.0, shift = staircase ? 0.0 : 0.5;
    slope = reversed ? -step : step;
    offset = size > 1.0 ? (reversed ? size - shift : -shift) * step : 0.5;
  }
  template <class D>
  LG_INLINE D time(const Pair<D>& pixel) const {
    D at = min(max(by_rows ? pixel.y : pixel.x, D(-1e9)), D(1e9));
    if (staircase) at = reversed ? -floor_whole(-at) : floor_whole(at);
    return min(max(fma(at, D(slope), D(offset)), D(-kLongestTime)), D(kLongestTime));
  }
};

// The turn at a time, by half its angle.
template <class D>
struct Instant {
  D time, sine, cosine;
};
template <class D>
LG_INLINE Instant<D> instant_at(const Sensor& s, D time) {
  const SineCosine<D> half = sine_cosine(time * D(0.5 * s.angle));
  return {time, half.sine, half.cosine};
}

// v turned about the axis by twice the half angle.
template <class D>
LG_INLINE Triple<D> turned(const Sensor& s, D sine, D cosine, const Triple<D>& v) {
  return v + turn_of(triple_of<D>(s.axis), sine, cosine, v);
}

// In the camera's frame at a time.
template <class D>
LG_INLINE Triple<D> at_instant(const Sensor& s, const Instant<D>& at, const Triple<D>& start) {
  const Triple<D> t = triple_of<D>(s.translation);
  if (!is_rolling(s)) return start + t;
  return turned(s, at.sine, at.cosine, start) + t + scaled(triple_of<D>(s.motion), at.time);
}

// The velocity of such a point, which is at rest in the world, per unit of time.
template <class D>
LG_INLINE Triple<D> velocity_at(const Sensor& s, const Instant<D>& at, const Triple<D>& point) {
  const Triple<D> m = triple_of<D>(s.motion), t = triple_of<D>(s.translation) + scaled(m, at.time);
  const Triple<D> from_eye = {point.x - t.x, point.y - t.y, point.z - t.z};
  return scaled(cross(triple_of<D>(s.axis), from_eye), D(s.angle)) + m;
}

// A point as the sensor sees it.
template <class D>
struct Seen {
  Triple<D> point;  // In the camera's frame at that instant.
  Pair<D> pixel;
  Instant<D> at;
  MaskOf<D> valid, found;  // `found`: its time follows from its pixel.
};

// Where a lens puts points: which places are close to the image, and when they are exposed.
template <class Lens>
struct Film {
  const View& view;
  double margin;
  Clock clock;

  LG_INLINE Film(const View& v, const Sensor& s, const Settings& settings)
      : view(v), margin(settings.unscented.margin), clock(v, s) {}
  template <class D>
  LG_INLINE MaskOf<D> is_near(const Pair<D>& pixel) const {
    const D x = D(margin * view.width), y = D(margin * view.height);
    return (pixel.x >= -x) & (pixel.x < x + D(view.width)) & (pixel.y >= -y) & (pixel.y < y + D(view.height));
  }
  template <class D>
  LG_INLINE D time(const Pair<D>& pixel) const {
    return clock.time(pixel);
  }
  // A place as close to another as it comes.
  template <class D>
  LG_INLINE Pair<D> beside(const Pair<D>&, const Pair<D>& pixel) const {
    return pixel;
  }
};

// Angles, which repeat after a turn.
template <>
struct Film<SpinningLidar> {
  const Sensor& sensor;
  double margin, steps;
  bool whole_field, staircase;

  LG_INLINE Film(const View& view, const Sensor& s, const Settings& settings)
      : sensor(s),
        margin(settings.unscented.margin),
        steps(view.width - 1.0),
        // Who reaches returns is found by their rays, also for a single row; gsplat culls what is out of the field.
        whole_field(settings.gsplat_bounds == 0),
        staircase(s.continuous == 0) {}
  // From the beginning of the turn, radians in [0, 2 pi).
  template <class D>
  LG_INLINE D turned_by(const Pair<D>& place) const {
    const D azimuth = place.x * D(1.0 / kUnitsPerRadian), begin = D(sensor.azimuth);
    const D angle = sensor.clockwise ? begin - azimuth : azimuth - begin;
    return fnma(floor_whole(angle * D(1.0 / kFullTurn)), D(kFullTurn), angle);
  }
  template <class D>
  LG_INLINE MaskOf<D> is_near(const Pair<D>& place) const {
    if (whole_field) return place.x <= place.x;
    const D down = fnma(place.y, D(1.0 / kUnitsPerRadian), D(sensor.elevation));
    const double edge = margin * sensor.elevation_span;
    return (turned_by(place) <= D((1.0 + margin) * sensor.azimuth_span)) & (down >= D(-edge)) &
           (down <= D(sensor.elevation_span + edge));
  }
  template <class D>
  LG_INLINE D time(const Pair<D>& place) const {
    const D time = turned_by(place) * D(sensor.azimuth_span > 0.0 ? 1.0 / sensor.azimuth_span : 0.0);
    const D whole = staircase && steps > 0.0 ? nearest_whole(time * D(steps)) * D(1.0 / steps) : time;
    return min(max(whole, D(0.0)), D(1.0));
  }
  template <class D>
  LG_INLINE Pair<D> beside(const Pair<D>& place, const Pair<D>& other) const {
    constexpr double kTurn = kFullTurn * kUnitsPerRadian;
    return {fnma(nearest_whole((other.x - place.x) * D(1.0 / kTurn)), D(kTurn), other.x), other.y};
  }
};

// The path of a point in the camera's frame: it turns about the axis, and moves with its slice.
template <class D>
struct Path {
  const SliceMotion<double>& slice;
  Triple<D> start, across, inward;

  LG_INLINE Path(const Sensor& s, const SliceMotion<double>& motion, const Triple<D>& at_start)
      : slice(motion), start(at_start) {
    across = cross(triple_of<D>(s.axis), start);
    inward = cross(triple_of<D>(s.axis), across);
  }
  LG_INLINE Triple<D> at(const Sensor& s, const Instant<D>& at) const {
    if (slice.moves) return at_instant(s, at, moved(slice, at.time, start));
    const Triple<D> turn = scaled(scaled(across, at.cosine) + scaled(inward, at.sine), D(2.0) * at.sine);
    const Triple<D> m = triple_of<D>(s.motion), t = triple_of<D>(s.translation);
    return {start.x + turn.x + fma(m.x, at.time, t.x), start.y + turn.y + fma(m.y, at.time, t.y),
            start.z + turn.z + fma(m.z, at.time, t.z)};
  }
};

// What the search for a Gaussian's centre leaves for its other points, which are close: near the solution the time of
// the pixel is a linear function of the time, of this slope.
template <class D>
struct Hint {
  bool known;
  D offset, slope;  // The solution is offset + time at the start / (1 - slope).
};

template <class Lens>
struct Sight {
  const Sensor& sensor;
  const SliceMotion<double>& slice;
  Film<Lens> film;
  SineCosine<double> end;  // Of half the turn.

  LG_INLINE Sight(const View& v, const Sensor& s, const Settings& t, const SliceMotion<double>& motion)
      : sensor(s), slice(motion), film(v, s, t), end(sine_cosine(0.5 * s.angle)) {}

  // The first of a Gaussian's points sets `hint`, the others use it.
  template <class D>
  LG_CALLED Seen<D> find(const Triple<D>& start, Hint<D>& hint) const {
    const D zero = D(0.0), one = D(1.0);
    const Instant<D> at_start = {zero, zero, one}, at_end = {one, D(end.sine), D(end.cosine)};
    if (!is_rolling(sensor)) return judged(see(start + triple_of<D>(sensor.translation), at_start));
    const Path<D> path(sensor, slice, start);
    const Seen<D> first = judged(see(path.at(sensor, at_start), at_start));
    const D from_first = film.time(first.pixel);
    // The end is looked at where the start does not see the point, and once for the slope.
    MaskOf<D> found = first.valid;
    D begin = from_first, line = zero;
    const bool guessed = sensor.continuous == 0 || hint.known;
    if (!guessed || any(select(found, zero, one) > zero)) {
      const Seen<D> last = judged(see(path.at(sensor, at_end), at_end));
      const D from_last = film.time(last.pixel);
      found = found | last.valid;
      // Points that neither end sees stay at the last one's pose.
      begin = select(first.valid, from_first, select(last.valid, from_last, one));
      line = zero_unless(first.valid & last.valid, from_last - from_first);
    }
    Seen<D> seen = sensor.continuous == 0
                       ? settle(path, found, begin)
                       : solve(path, found, first.valid, begin, hint.known ? hint.slope : line, hint);
    seen = judged(seen);
    seen.found = found;
    seen.valid = seen.valid & found;
    return seen;
  }

 private:
  template <class D>
  LG_INLINE Seen<D> see(const Triple<D>& point, const Instant<D>& at) const {
    const OnFilm<D> at_place = Optics<Lens>::project(sensor, point);
    return {point, at_place.pixel, at, at_place.valid, at_place.valid};
  }
  template <class D>
  LG_INLINE Seen<D> judged(Seen<D> seen) const {
    seen.valid = seen.valid & film.is_near(seen.pixel);
    return seen;
  }
  template <class D>
  LG_INLINE Seen<D> see_at(const Path<D>& path, D time) const {
    const Instant<D> at = instant_at(sensor, time);
    return see(path.at(sensor, at), at);
  }

  // Ten rounds, or until the row repeats.
  template <class D>
  LG_INLINE Seen<D> settle(const Path<D>& path, MaskOf<D> found, D time) const {
    for (int i = 1;; ++i) {
      const Seen<D> seen = see_at(path, time);
      const D next = select(found, film.time(seen.pixel), time);
      if (i == 10 || !any(abs(next - time) > D(0.0))) return seen;
      time = next;
    }
  }

  // By the secant method, which takes a few rounds where the plain iteration takes many. Times are exact to 1e-10: a
  // pixel, to far less than what a float holds.
  template <class D>
  LG_INLINE Seen<D> solve(const Path<D>& path, MaskOf<D> found, MaskOf<D> guessed, D begin, D slope,
                          Hint<D>& hint) const {
    constexpr int kRounds = 24;
    const D steepest = D(0.9), one = D(1.0), offset = hint.known ? hint.offset : D(0.0);
    slope = min(max(slope, -steepest), steepest);
    D time = select(guessed, offset + begin / (one - slope), begin), before = time, error_before = D(0.0);
    for (int i = 1;; ++i) {
      const Seen<D> seen = see_at(path, time);
      const D error = zero_unless(found, film.time(seen.pixel) - time);
      const auto moves = abs(error) > D(1e-10) * (one + abs(time));
      const D step = time - before;
      const auto apart = abs(step) > D(1e-9);
      const D chord = one + (error - error_before) / select(apart, step, one);
      slope = min(max(select(apart, chord, slope), -steepest), steepest);
      if (i == kRounds || !any(moves)) {
        if (!hint.known) {
          const D missed = time - begin / (one - slope);
          hint = {true, zero_unless(guessed, min(max(missed, -one), one)), zero_unless(guessed, slope)};
        }
        return seen;
      }
      before = time;
      error_before = error;
      time = select(moves, time + error / (one - slope), time);
    }
  }
};

// The gradient of a pixel as that of the pixel at a fixed time: with the continuous clock the time follows the pixel.
// `placed` is the point in the frame at the start of the exposure, where its slice has moved it.
template <class D>
LG_INLINE Pair<D> time_backward(const View& view, const Sensor& s, const SliceMotion<double>& slice,
                                const Seen<D>& seen, const Triple<D>& placed, const Jacobian<D>& j, const Pair<D>& v) {
  if (!is_rolling(s) || s.continuous == 0) return v;
  const Clock clock(view, s);
  Triple<D> velocity = velocity_at(s, seen.at, seen.point);
  if (slice.moves) {
    const Triple<D> own = velocity_of(slice, seen.at.time, placed);
    velocity = velocity + turned(s, seen.at.sine, seen.at.cosine, own);
  }
  const Pair<D> rate = product(j, velocity);
  const D one = D(1.0), slope = D(clock.slope);
  const D rest = fma(-slope, clock.by_rows ? rate.y : rate.x, one);
  const D safe = select(abs(rest) > D(1e-6), rest, D(1e-6));
  const D more = zero_unless(seen.found, slope * fma(rate.x, v.x, rate.y * v.y) / safe);
  return clock.by_rows ? Pair<D>{v.x, v.y + more} : Pair<D>{v.x + more, v.y};
}

// Adds to the sums of the motion (see kMotionSums), given the gradients of the turn of the pose at a time, seen from
// the start, and of its translation.
template <class D, class Add>
LG_INLINE void add_motion(const Sensor& s, const Instant<D>& at, const Triple<D>& spin, const Triple<D>& v,
                          const Add& add) {
  const auto put = [&](int first, const Triple<D>& values) {
    add(lens_parameter::kCount + first, values.x);
    add(lens_parameter::kCount + first + 1, values.y);
    add(lens_parameter::kCount + first + 2, values.z);
  };
  put(0, spin);
  put(6, v);
  if (!is_rolling(s)) return;
  const SineCosine<double> half = sine_cosine(0.5 * s.angle);
  put(3, carried_to_end(triple_of<D>(s.axis), {D(half.sine), D(half.cosine)}, {at.sine, at.cosine}, at.time, spin));
  put(9, scaled(v, at.time));
}

// Adds a point's share to these and to those of its slice, given the gradient of the point in the camera's frame at its
// time; returns that of the point at the start. `placed`: as in time_backward.
template <class D, class Add>
LG_INLINE Triple<D> motion_backward(const Sensor& s, const SliceMotion<double>& slice, const Seen<D>& seen,
                                    const Triple<D>& start, const Triple<D>& placed, const Triple<D>& v,
                                    const Add& add) {
  const Triple<D> back = is_rolling(s) ? turned(s, -seen.at.sine, seen.at.cosine, v) : v;
  if (add.wanted()) add_motion(s, seen.at, cross(placed, back), v, add);
  return moved_backward(slice, seen.at.time, start, back, add);
}

LG_END
