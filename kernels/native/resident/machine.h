// The interface of a device for the steps of a resident training. One thread uses a machine at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "density/params.h"
#include "gaussians/params.h"
#include "gaussians/sensor_pose.h"
#include "resident/film.h"
#include "resident/spheres.h"
#include "training/params.h"

namespace lumigrad::resident {

// The numbers of a step, which may still be on their way from the device.
class Report {
 public:
  virtual ~Report() = default;
  virtual bool is_complete() const = 0;
  // Waits for the device; throws if it has failed. On any thread.
  virtual void wait() = 0;

  // Valid once the report is complete.
  std::vector<double> numbers;
  std::map<std::string, double> milliseconds;  // Times by stage of the kernels.
};

// Views of one size, with their scene and settings. `poses`, `films` and `sensors`, on the device, replace the scene's
// poses, the views' intrinsics and the poses of its sensors unless null.
struct Drawing {
  const gaussians::View* views;
  int count;
  const gaussians::Settings* settings;
  const gaussians::Scene* scene;
  const gaussians::Pose* poses;
  const gaussians::Film* films;
  const gaussians::SensorPose* sensors;
};

// Loss terms of the surface that surfels describe, in views of pinhole cameras: weights, images, gradients and values.
// Pointers for a term without a weight are null.
struct SurfaceTerms {
  const gaussians::View* views;
  const gaussians::Pose* poses;
  int count;
  double normal, distortion;
  const float *alpha, *normals, *expected_depth, *distortions;
  float *d_alpha, *d_normals, *d_expected_depth, *d_distortions;
  bool adds_alpha, adds_depth;  // Whether to add to existing gradients.
  double* values;               // One per term with a weight.
};

// All work is done, or queued, in the order of the calls.
class Machine {
 public:
  virtual ~Machine() = default;
  // Whether `backward` writes gradients of harmonics by factors, for one view and three channels.
  virtual bool gives_sh_factors() const = 0;

  // Begins a step, which must return all memory that it takes before `end`. Unless this throws, `end` must follow.
  virtual void begin() = 0;
  // Ends a step and drops the state that its passes kept; if `failed`, waits for queued work first.
  virtual void end(bool failed) noexcept = 0;
  virtual void* take(std::size_t bytes) = 0;
  virtual void give(void* memory) noexcept = 0;
  virtual void copy(void* to, const void* from, std::size_t bytes) = 0;
  // A report of this many numbers, for `send`.
  virtual std::shared_ptr<Report> report(std::size_t numbers) = 0;

  // The forward pass of the step, which `backward` differentiates.
  virtual void forward(const Drawing& drawing, const gaussians::Outputs& outputs) = 0;
  virtual void backward(const Drawing& drawing, const gaussians::Upstream& upstream,
                        const gaussians::Gradients& gradients) = 0;
  // The same for views of spheres, of one size: colours [C, H, W, K] and, unless null, alphas [C, H, W]. Not available
  // on all devices; without it, steps of spheres need Python.
  virtual void forward_spheres(const Spheres&, const std::vector<SphereView>&, float*, float*) {
    throw std::logic_error("this device has no steps of spheres");
  }
  virtual void backward_spheres(const Spheres&, const spheres::Upstream&, const spheres::Gradients&) {
    throw std::logic_error("this device has no steps of spheres");
  }
  virtual void image_loss(const training::ImageLoss& loss, double* values) = 0;
  virtual void plane_loss(const std::vector<training::PlaneLoss>& views, double* values) = 0;
  // Not available on all devices; without it, steps with these terms need Python.
  virtual void surface_terms(const SurfaceTerms&) { throw std::logic_error("this device has no terms of surfaces"); }
  virtual void expose(const training::Exposure& view) = 0;
  virtual void expose_backward(const training::Exposure& view, float* matrix) = 0;
  virtual void center_exposures(float* matrices, std::int64_t views) = 0;
  // Functions of resident/pose.h, for poses on the device.
  virtual void draw_pose(const double* pose, gaussians::Pose* to) = 0;
  virtual void motion_gradient(const double* sums, const double* pose, float* gradient) = 0;
  virtual void move_pose(double* pose, const float* motion) = 0;
  virtual void draw_sensor(const double* start, const double* end, bool rolling, gaussians::SensorPose* sensor,
                           gaussians::Pose* to) = 0;
  virtual void sensor_motion_gradients(const double* pose_sums, const double* sensor_sums, const double* start,
                                       const double* end, bool rolling, float* to_start, float* to_end) = 0;
  // Functions of resident/film.h, and a step of Adam for a calibration, given its gradient.
  virtual void draw_film(const double* own, const float* offsets, const gaussians::View& view, gaussians::Film* to) = 0;
  virtual void film_gradient(const double* sums, const double* own, const float* offsets, bool adds,
                             float* gradient) = 0;
  virtual void step_calibration(const Adam& adam, double rate, const Calibration& from, NextCalibration* next) = 0;
  virtual void check_film(const double* own, NextCalibration* next) = 0;
  virtual void keep_calibration(const NextCalibration* next, const Calibration& to) = 0;
  virtual void mean(const training::Mean& values, double* to) = 0;
  virtual void count_touched(const std::int32_t* touched, std::int64_t count, std::uint8_t* rows, double* to) = 0;
  virtual void accumulate(const density::Observed& observed, const density::Statistics& to) = 0;
  virtual void adam(const std::vector<training::AdamGroup>& groups, const training::AdamSettings& settings,
                    double* sums) = 0;
  virtual void add_noise(const density::Gaussians& rows, const density::Draw& draw, float strength) = 0;
  // Sends numbers on the device, and the times of the step, to `report`.
  virtual void send(const double* numbers, Report& report) = 0;
};

// An array on the device, returned before the step ends.
template <class T>
class Memory {
 public:
  Memory(Machine& machine, std::size_t count)
      : machine_(machine), data_(count > 0 ? static_cast<T*>(machine.take(count * sizeof(T))) : nullptr) {}
  Memory(Memory&& other) noexcept : machine_(other.machine_), data_(std::exchange(other.data_, nullptr)) {}
  Memory& operator=(Memory&&) = delete;
  ~Memory() {
    if (data_ != nullptr) machine_.give(data_);
  }

  T* data() const { return data_; }

 private:
  Machine& machine_;
  T* data_;
};

std::shared_ptr<Machine> make_cpu_machine();

}  // namespace lumigrad::resident
