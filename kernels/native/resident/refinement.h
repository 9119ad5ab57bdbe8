// Exposures, poses and intrinsics of a step's views. Their new values are computed in separate memory: after the first
// change nothing may fail.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "resident/binding.h"
#include "resident/machine.h"
#include "resident/pose.h"

namespace lumigrad::resident {

// The rows of a step's views, after a step of Adam.
class RowStep {
 public:
  // `rows` may be null if there are none.
  RowStep(Machine& machine, const Rows* rows, std::size_t width, const std::vector<std::uint32_t>& views)
      : machine_(machine),
        rows_(rows),
        width_(width),
        views_(views),
        scratch_(machine, rows == nullptr ? 0 : kParts * size()),
        sums_(machine, rows == nullptr ? 0 : training::kAdamSums) {}

  std::size_t views() const { return views_.size(); }
  const float* row(std::size_t place) const { return rows_->values + views_[place] * width_; }
  float* gradient(std::size_t place) const { return at(kGradient, place); }
  const float* value(std::size_t place) const { return at(kValues, place); }

  // Computes the new rows.
  void prepare(const Optimizer& optimizer, std::uint64_t step) {
    float* const from[] = {rows_->values, rows_->first, rows_->second};
    for (std::size_t place = 0; place < views_.size(); ++place) {
      for (int i = 0; i < kGradient; ++i) machine_.copy(at(i, place), from[i] + views_[place] * width_, bytes());
      training::AdamGroup group{};
      group.raw = at(kValues, place);
      group.first = at(kFirst, place);
      group.second = at(kSecond, place);
      group.gradient = at(kGradient, place);
      group.count = 1;
      group.width = static_cast<std::int32_t>(width_);
      const auto done = static_cast<std::uint64_t>(rows_->steps[views_[place]]);
      group.step_size = optimizer.adam.step_size(rows_->rate.at(step), done);
      machine_.adam({group}, optimizer.adam.settings(done), sums_.data());
    }
  }
  // Changes the moments, and with `values` also the values.
  void change(bool values) {
    float* const to[] = {rows_->values, rows_->first, rows_->second};
    for (std::size_t place = 0; place < views_.size(); ++place) {
      for (int i = values ? kValues : kFirst; i < kGradient; ++i) {
        machine_.copy(to[i] + views_[place] * width_, at(i, place), bytes());
      }
      ++rows_->steps[views_[place]];
    }
  }

 private:
  enum Part { kValues, kFirst, kSecond, kGradient, kParts };

  std::size_t size() const { return views_.size() * width_; }
  std::size_t bytes() const { return width_ * sizeof(float); }
  float* at(int part, std::size_t place) const {
    return scratch_.data() + static_cast<std::size_t>(part) * size() + place * width_;
  }

  Machine& machine_;
  const Rows* const rows_;
  const std::size_t width_;
  const std::vector<std::uint32_t> views_;
  const Memory<float> scratch_;  // [kParts, views, width]
  const Memory<double> sums_;
};

class ExposureStep {
 public:
  ExposureStep(Machine& machine, const Exposures* exposures, const std::vector<std::uint32_t>& views)
      : machine_(machine),
        exposures_(exposures),
        rows_(machine, exposures == nullptr ? nullptr : &exposures->rows, training::kExposure, views) {}

  // Exposes the images [views, pixels, 3] into `to`.
  void expose(const float* images, float* to, std::size_t pixels) const {
    each(images, to, pixels, [&](const training::Exposure& view, std::size_t) { machine_.expose(view); });
  }
  // Converts `gradient` from exposed to unexposed images.
  void differentiate(const float* images, float* gradient, std::size_t pixels) const {
    each(images, gradient, pixels, [&](const training::Exposure& view, std::size_t place) {
      machine_.expose_backward(view, rows_.gradient(place));
    });
  }
  void prepare(const Optimizer& optimizer, std::uint64_t step) {
    if (exposures_ != nullptr) rows_.prepare(optimizer, step);
  }
  void change() {
    if (exposures_ == nullptr) return;
    rows_.change(true);
    if (exposures_->centered) machine_.center_exposures(exposures_->rows.values, exposures_->views);
  }

 private:
  template <class Body>
  void each(const float* images, float* to, std::size_t pixels, const Body& body) const {
    for (std::size_t place = 0; place < rows_.views(); ++place) {
      const std::size_t begin = place * pixels * 3;
      body({rows_.row(place), images + begin, to + begin, static_cast<std::int64_t>(pixels)}, place);
    }
  }

  Machine& machine_;
  const Exposures* const exposures_;
  RowStep rows_;
};

class PoseStep {
 public:
  // `sensors` are those of the views, or empty.
  PoseStep(Machine& machine, const Poses* poses, const std::vector<std::uint32_t>& views,
           const std::vector<gaussians::Sensor>& sensors)
      : machine_(machine),
        poses_(poses),
        views_(views),
        starts_(machine, poses != nullptr && poses->starts ? &*poses->starts : nullptr, kMotion, views),
        ends_(machine, poses != nullptr && poses->ends ? &*poses->ends : nullptr, kMotion, views),
        drawn_(machine, poses == nullptr ? 0 : views.size()),
        sums_(machine, poses == nullptr ? 0 : views.size() * gaussians::kPoseSums),
        moved_(machine, poses == nullptr ? 0 : views.size() * kPose),
        sensors_(machine, poses == nullptr ? 0 : sensors.size()),
        sensor_sums_(machine, poses == nullptr ? 0 : sensors.size() * gaussians::kSensorSums),
        glass_sums_(machine, poses == nullptr ? 0 : sensors.size() * 2 * gaussians::lens_parameter::kWindshield),
        moved_ends_(machine, poses == nullptr ? 0 : sensors.size() * kPose) {
    for (const gaussians::Sensor& sensor : sensors) rolling_.push_back(sensor.shutter != gaussians::Shutter::global);
    for (std::size_t place = 0; poses != nullptr && place < views.size(); ++place) {
      if (sensors.empty()) {
        machine.draw_pose(pose(place), drawn_.data() + place);
      } else {
        machine.draw_sensor(pose(place), end(place), rolling_[place], sensors_.data() + place, drawn_.data() + place);
      }
    }
  }

  // Poses for the passes, and the sums of the backward pass; null if poses are not refined.
  const gaussians::Pose* drawn() const { return drawn_.data(); }
  const gaussians::SensorPose* sensors() const { return sensors_.data(); }
  double* sums() const { return sums_.data(); }
  double* sensor_sums() const { return sensor_sums_.data(); }
  double* glass_sums() const { return glass_sums_.data(); }

  void prepare(const Optimizer& optimizer, std::uint64_t step) {
    if (poses_ == nullptr) return;
    const bool moves_starts = poses_->starts.has_value(), moves_ends = poses_->ends.has_value();
    for (std::size_t place = 0; place < views_.size(); ++place) {
      const double* sums = sums_.data() + place * gaussians::kPoseSums;
      machine_.copy(moved(place), pose(place), kPose * sizeof(double));
      if (rolling_.empty()) {
        machine_.motion_gradient(sums, pose(place), starts_.gradient(place));
        continue;
      }
      machine_.copy(moved_end(place), end(place), kPose * sizeof(double));
      machine_.sensor_motion_gradients(sums, sensor_sums_.data() + place * gaussians::kSensorSums, pose(place),
                                       end(place), rolling_[place], moves_starts ? starts_.gradient(place) : nullptr,
                                       moves_ends ? ends_.gradient(place) : nullptr);
    }
    if (moves_starts) starts_.prepare(optimizer, step);
    if (moves_ends) ends_.prepare(optimizer, step);
    for (std::size_t place = 0; place < views_.size(); ++place) {
      if (moves_starts) machine_.move_pose(moved(place), starts_.value(place));
      if (rolling_.empty() || !rolling_[place]) continue;
      machine_.move_pose(moved_end(place), moves_ends ? ends_.value(place) : starts_.value(place));
    }
  }
  // Writes the new poses and moments. The motions themselves stay 0.
  void change() {
    if (poses_ == nullptr) return;
    if (poses_->starts) starts_.change(false);
    if (poses_->ends) ends_.change(false);
    for (std::size_t place = 0; place < views_.size(); ++place) {
      machine_.copy(pose(place), moved(place), kPose * sizeof(double));
      if (!rolling_.empty()) machine_.copy(end(place), moved_end(place), kPose * sizeof(double));
    }
  }

 private:
  double* pose(std::size_t place) const { return poses_->poses + std::size_t{views_[place]} * kPose; }
  double* end(std::size_t place) const { return poses_->end_poses + std::size_t{views_[place]} * kPose; }
  double* moved(std::size_t place) const { return moved_.data() + place * kPose; }
  double* moved_end(std::size_t place) const { return moved_ends_.data() + place * kPose; }

  Machine& machine_;
  const Poses* const poses_;
  const std::vector<std::uint32_t> views_;
  std::vector<bool> rolling_;  // Of each view; empty without sensors.
  RowStep starts_, ends_;
  const Memory<gaussians::Pose> drawn_;  // [views]
  const Memory<double> sums_;            // [views, kPoseSums]
  const Memory<double> moved_;           // [views, kPose]
  const Memory<gaussians::SensorPose> sensors_;
  const Memory<double> sensor_sums_;  // [views, kSensorSums]
  const Memory<double> glass_sums_;   // [views, 2 kWindshield]
  const Memory<double> moved_ends_;   // [views, kPose]
};

// The intrinsics of a step's views. On the device it turns out whether a calibration's step is taken back.
class FilmStep {
 public:
  FilmStep(Machine& machine, const Intrinsics* intrinsics, const std::vector<std::uint32_t>& views,
           const std::vector<gaussians::View>& drawn)
      : machine_(machine),
        intrinsics_(intrinsics),
        views_(views),
        films_(machine, intrinsics == nullptr ? 0 : views.size()),
        sums_(machine, intrinsics == nullptr ? 0 : views.size() * kFilm),
        next_(machine, intrinsics == nullptr ? 0 : views.size()) {
    each([&](std::size_t place, std::uint32_t calibration) {
      machine.draw_film(own(place), row(calibration).values, drawn[place], films_.data() + place);
    });
  }

  // Intrinsics for the passes, and the sums of the backward pass; null if intrinsics are not refined.
  const gaussians::Film* drawn() const { return films_.data(); }
  double* sums() const { return sums_.data(); }

  void prepare(const Optimizer& optimizer, std::uint64_t step) {
    each([&](std::size_t place, std::uint32_t calibration) {
      const std::size_t first = first_of(calibration);
      machine_.film_gradient(sums_.data() + place * kFilm, own(place), row(calibration).values, first != place,
                             next_.data()[first].gradient);
    });
    each([&](std::size_t place, std::uint32_t calibration) {
      if (first_of(calibration) != place) return;
      machine_.step_calibration(optimizer.adam, intrinsics_->rows.rate.at(step), row(calibration),
                                next_.data() + place);
    });
    each([&](std::size_t place, std::uint32_t calibration) {
      machine_.check_film(own(place), next_.data() + first_of(calibration));
    });
  }
  void change() {
    each([&](std::size_t place, std::uint32_t calibration) {
      if (first_of(calibration) == place) machine_.keep_calibration(next_.data() + place, row(calibration));
    });
  }

 private:
  template <class Body>
  void each(const Body& body) const {
    for (std::size_t place = 0; intrinsics_ != nullptr && place < views_.size(); ++place) {
      body(place, intrinsics_->calibrations[views_[place]]);
    }
  }
  // The place of the first view of a calibration.
  std::size_t first_of(std::uint32_t calibration) const {
    const auto is_of = [&](std::uint32_t view) { return intrinsics_->calibrations[view] == calibration; };
    return static_cast<std::size_t>(std::find_if(views_.begin(), views_.end(), is_of) - views_.begin());
  }
  const double* own(std::size_t place) const { return intrinsics_->films + std::size_t{views_[place]} * kFilm; }
  Calibration row(std::uint32_t calibration) const {
    const Rows& rows = intrinsics_->rows;
    const std::size_t at = std::size_t{calibration} * kFilm;
    return {rows.values + at, rows.first + at, rows.second + at, rows.steps + calibration};
  }

  Machine& machine_;
  const Intrinsics* const intrinsics_;
  const std::vector<std::uint32_t> views_;
  const Memory<gaussians::Film> films_;
  const Memory<double> sums_;           // [views, kFilm]
  const Memory<NextCalibration> next_;  // [views], at the place of each calibration's first view.
};

}  // namespace lumigrad::resident
