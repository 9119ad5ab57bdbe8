// Rolling shutters: when a pixel is exposed, where the camera is then, and which pixel a point lands in (sensors spec
// section 5). Points are given in the camera's frame at the start of the exposure, before its translation.
#pragma once

#include "gaussians/math/sensor/lidar.h"
#include "gaussians/math/sensor/slice_motion.h"
#include "gaussians/math/sensor/windshield.h"

LG_BEGIN_ENGINE(gaussians)

// Times are clamped to this: a point next to the camera's plane may land anywhere.
inline constexpr double kLongestTime = 1e4;
// How long after the exposure to search for the time of a point beyond the margin. Still later, a turning camera may
// see a point that it never sees during the exposure.
inline constexpr double kLastTime = 2.0;

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
    D at = by_rows ? pixel.y : pixel.x;
    if (staircase) {
      at = min(max(at, D(-1e9)), D(1e9));
      at = reversed ? -floor_whole(-at) : floor_whole(at);
    }
    return min(max(fma(at, D(slope), D(offset)), D(-kLongestTime)), D(kLongestTime));
  }
};

// The turn at a time, as sine and cosine of half its angle.
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

// A point in the camera's frame at a time.
template <class D>
LG_INLINE Triple<D> at_instant(const Sensor& s, const Instant<D>& at, const Triple<D>& start) {
  const Triple<D> t = triple_of<D>(s.translation);
  if (!is_rolling(s)) return start + t;
  return turned(s, at.sine, at.cosine, start) + t + scaled(triple_of<D>(s.motion), at.time);
}

// The velocity, in the camera's frame, of a point at rest in the world, per unit of time.
template <class D>
LG_INLINE Triple<D> velocity_at(const Sensor& s, const Instant<D>& at, const Triple<D>& point) {
  const Triple<D> m = triple_of<D>(s.motion), t = triple_of<D>(s.translation) + scaled(m, at.time);
  const Triple<D> from_eye = {point.x - t.x, point.y - t.y, point.z - t.z};
  return scaled(cross(triple_of<D>(s.axis), from_eye), D(s.angle)) + m;
}

// A point as the sensor sees it.
template <class D>
struct Seen {
  Triple<D> point;  // Point in the camera's frame at that instant.
  Pair<D> pixel;
  Instant<D> at;
  MaskOf<D> valid, found;  // `found`: whether the time follows from the pixel.
};

// The film of a lens: which places are close to the image, and when they are exposed.
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
  // `other`, moved by whole turns if places are angles, so that it is nearest to `place`.
  template <class D>
  LG_INLINE Pair<D> beside(const Pair<D>& /*place*/, const Pair<D>& other) const {
    return other;
  }
};

// The film of a lidar: angles, which repeat after a turn.
template <>
struct Film<SpinningLidar> {
  const Sensor& sensor;
  double margin, steps;
  bool whole_field, staircase;

  LG_INLINE Film(const View& view, const Sensor& s, const Settings& settings)
      : sensor(s),
        margin(settings.unscented.margin),
        steps(view.width - 1.0),
        // Rays decide which Gaussians a return sees, so nothing is culled here, except with gsplat's bounds.
        whole_field(settings.gsplat_bounds == 0),
        staircase(s.continuous == 0) {}
  // The angle turned since the beginning of the turn, radians in [0, 2 pi).
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
  const Sensor& sensor;
  const SliceMotion<double>& slice;
  Triple<D> start, begin;    // The start, before and after the camera's translation there.
  Triple<D> across, inward;  // Vectors that a turn by an angle adds, times its sine and 1 minus its cosine.

  LG_INLINE Path(const Sensor& s, const SliceMotion<double>& motion, const Triple<D>& at_start)
      : sensor(s), slice(motion), start(at_start), begin(at_start + triple_of<D>(s.translation)) {
    across = cross(triple_of<D>(s.axis), start);
    inward = cross(triple_of<D>(s.axis), across);
  }
  LG_INLINE Triple<D> at(const Instant<D>& at) const {
    if (slice.moves) return at_instant(sensor, at, moved(slice, at.time, start));
    const D twice = at.sine + at.sine, sine = twice * at.cosine, versine = twice * at.sine;
    const Triple<D> m = triple_of<D>(sensor.motion);
    return {fma(inward.x, versine, fma(across.x, sine, fma(m.x, at.time, begin.x))),
            fma(inward.y, versine, fma(across.y, sine, fma(m.y, at.time, begin.y))),
            fma(inward.z, versine, fma(across.z, sine, fma(m.z, at.time, begin.z)))};
  }
};

// The result of the search for a Gaussian's centre, as a hint for its other points, which are close: near the solution
// the pixel's time is a linear function of time with this slope. Let s be the time of the pixel where a point lands at
// the start of the exposure.
template <class D>
struct Hint {
  D offset, slope, rate;  // The solution is offset + rate * s; rate is 1 / (1 - slope).
};

template <class Lens>
struct Sight {
  const Sensor& sensor;
  const SliceMotion<double>& slice;
  Film<Lens> film;
  // Whether the time of a point beyond the margin also follows from its pixel. gsplat uses the pose at the end of the
  // exposure for it, which smears a Gaussian with points on both sides of the margin over the image.
  bool follows;
  double last_time;

  LG_INLINE Sight(const View& v, const Sensor& s, const Settings& t, const SliceMotion<double>& motion)
      : sensor(s),
        slice(motion),
        film(v, s, t),
        // A lidar has no margin, and its time jumps where a turn begins.
        follows(s.continuous != 0 && s.monotone != 0 && s.lens != SensorLens::lidar),
        last_time(follows ? kLastTime + t.unscented.margin : kLongestTime) {}

  // Sees a point with a global shutter.
  template <class D>
  LG_INLINE void at_rest(const Triple<D>& start, Seen<D>& to) const {
    to.at = {D(0.0), D(0.0), D(1.0)};
    to.point = start + triple_of<D>(sensor.translation);
    const OnFilm<D> place = on_film(to.point);
    to.pixel = place.pixel;
    to.valid = to.found = place.valid & film.is_near(place.pixel);
  }

  // Sees a Gaussian's centre.
  template <class D>
  LG_CALLED void find(const Triple<D>& start, Hint<D>& hint, Seen<D>& to) const {
    const D zero = D(0.0), one = D(1.0);
    hint = {zero, zero, one};
    const Path<D> path(sensor, slice, start);
    const OnFilm<D> first = on_film(path.begin);
    if (sensor.continuous == 0) return settle(path, first, to);
    const OnFilm<D> last = at_end(path);
    const D begin = time_of(first.pixel);
    hint.slope = cut(zero_unless(first.valid & last.valid, time_of(last.pixel) - begin));
    solve(path, first.valid, begin / (one - hint.slope), hint.slope, to);
    hint.slope = zero_unless(first.valid, hint.slope);
    hint.rate = one / (one - hint.slope);
    hint.offset = zero_unless(first.valid, min(max(fnma(begin, hint.rate, to.at.time), -one), one));
  }

  // Sees another point of the Gaussian, after the centre.
  template <class D>
  LG_CALLED void find_beside(const Hint<D>& hint, const Triple<D>& start, Seen<D>& to) const {
    const Path<D> path(sensor, slice, start);
    const OnFilm<D> first = on_film(path.begin);
    if (sensor.continuous == 0) return settle(path, first, to);
    D slope = hint.slope;
    solve(path, first.valid, fma(time_of(first.pixel), hint.rate, hint.offset), slope, to);
  }

 private:
  template <class D>
  LG_INLINE OnFilm<D> on_film(const Triple<D>& point) const {
    OnFilm<D> place = Optics<Lens>::project(sensor, point);
    if (!follows) place.valid = place.valid & film.is_near(place.pixel);
    return place;
  }
  template <class D>
  LG_INLINE OnFilm<D> at_end(const Path<D>& path) const {
    return on_film(path.at(instant_at(sensor, D(1.0))));
  }
  template <class D>
  LG_INLINE D within(D time) const {
    return min(max(time, D(-last_time)), D(last_time));
  }
  template <class D>
  LG_INLINE D time_of(const Pair<D>& pixel) const {
    return within(film.time(pixel));
  }
  template <class D>
  LG_INLINE D cut(D slope) const {
    return min(max(slope, D(-0.9)), D(0.9));
  }
  // Sees a point at a time; returns the time of the pixel in which it lands.
  template <class D>
  LG_INLINE D look(const Path<D>& path, D time, Seen<D>& to) const {
    to.at = instant_at(sensor, time);
    to.point = path.at(to.at);
    const OnFilm<D> place = on_film(to.point);
    to.pixel = place.pixel;
    to.valid = place.valid;
    return time_of(to.pixel);
  }
  template <class D>
  LG_INLINE void finish(MaskOf<D> found, Seen<D>& to) const {
    to.found = found;
    to.valid = to.valid & found & film.is_near(to.pixel);
  }

  // Iterates the staircase: ten rounds, or until the row repeats.
  template <class D>
  LG_CALLED void settle(const Path<D>& path, const OnFilm<D>& first, Seen<D>& to) const {
    MaskOf<D> found = first.valid;
    D time = film.time(first.pixel);
    if (any(!found)) {
      const OnFilm<D> last = at_end(path);
      time = select(found, time, select(last.valid, film.time(last.pixel), D(1.0)));
      found = found | last.valid;
    }
    for (int i = 1;; ++i) {
      const D next = select(found, look(path, time, to), time);
      if (i == 10 || !any(abs(next - time) > D(0.0))) return finish(found, to);
      time = next;
    }
  }

  // Solves by the secant method, which takes a few rounds where the plain iteration takes many. Errors of times stay
  // below 1e-9, which moves pixels by far less than the precision of a float. Begins at `time` if the point is visible
  // at the start, otherwise at the end of the exposure; stays there if the point is not visible at the end either.
  template <class D>
  LG_INLINE void solve(const Path<D>& path, MaskOf<D> found, D time, D& slope, Seen<D>& to) const {
    constexpr int kRounds = 24;
    const D one = D(1.0);
    time = select(found, within(time), one);
    D before = time, error_before = D(0.0);
    for (int i = 1;; ++i) {
      const D next = look(path, time, to);
      if (i == 1) found = found | to.valid;
      const D error = zero_unless(found, next - time);
      const auto moves = abs(error) > D(1e-10) * (one + abs(time));
      if (i == kRounds || !any(moves)) {
        if (follows) found = found & !moves & (abs(time) < D(last_time));
        return finish(found, to);
      }
      if (i > 1) {
        const D step = time - before;
        const auto apart = abs(step) > D(1e-9);
        slope = cut(select(apart, one + (error - error_before) / select(apart, step, one), slope));
      }
      before = time;
      error_before = error;
      time = select(moves, within(time + error / (one - slope)), time);
    }
  }
};

// Converts the gradient of a pixel to that of the pixel at a fixed time: with the continuous clock the time depends on
// the pixel. `placed` is the point in the frame at the start of the exposure, after the motion of its slice.
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

// Adds a point's share to the sums of the motion and of its slice, given the gradient of the point in the camera's
// frame at its time; returns the gradient of the point at the start. `placed`: as in time_backward.
template <class D, class Add>
LG_INLINE Triple<D> motion_backward(const Sensor& s, const SliceMotion<double>& slice, const Seen<D>& seen,
                                    const Triple<D>& start, const Triple<D>& placed, const Triple<D>& v,
                                    const Add& add) {
  const Triple<D> back = is_rolling(s) ? turned(s, -seen.at.sine, seen.at.cosine, v) : v;
  if (add.wanted()) add_motion(s, seen.at, cross(placed, back), v, add);
  return moved_backward(slice, seen.at.time, start, back, add);
}

LG_END
