#include "resident/cuda/machine.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "common/cuda/event.h"
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/timer.h"
#include "common/threads.h"
#include "density/cuda/engine.h"
#include "gaussians/cuda/engine.h"
#include "resident/cuda/films.h"
#include "resident/cuda/poses.h"
#include "training/cuda/engine.h"

namespace lumigrad::resident {
namespace {

// Pinned host memory for reports, reused because allocating it is slow.
class Places {
 public:
  Places() = default;
  Places(const Places&) = delete;
  Places& operator=(const Places&) = delete;
  ~Places() {
    for (const auto& [count, places] : free_) {
      for (double* place : places) cudaFreeHost(place);
    }
  }

  double* take(std::size_t count) {
    {
      const std::lock_guard lock(mutex_);
      std::vector<double*>& places = free_[count];
      if (!places.empty()) {
        double* place = places.back();
        places.pop_back();
        return place;
      }
    }
    double* place = nullptr;
    check(cudaMallocHost(reinterpret_cast<void**>(&place), count * sizeof(double)), "allocating host memory");
    return place;
  }
  void give(std::size_t count, double* place) {
    const std::lock_guard lock(mutex_);
    free_[count].push_back(place);
  }

 private:
  std::mutex mutex_;
  std::map<std::size_t, std::vector<double*>> free_;
};

// A report whose numbers are on their way to pinned host memory.
class CudaReport final : public Report {
 public:
  CudaReport(int device, cudaStream_t stream, std::size_t count, std::shared_ptr<Places> places)
      : device_(device), places_(std::move(places)), place_(places_->take(count)), sent_(stream) {
    numbers.resize(count);
  }
  // Even if nobody waits for the numbers any more, they must arrive before their memory is reused.
  ~CudaReport() override {
    if (!is_complete_) sent_.synchronize();
    places_->give(numbers.size(), place_);
  }

  bool is_complete() const override { return is_complete_; }
  void wait() override {
    if (is_complete_) return;
    const DeviceGuard guard(device_);
    sent_.wait();
    const std::lock_guard lock(mutex_);
    if (is_complete_) return;
    std::copy(place_, place_ + numbers.size(), numbers.begin());
    for (const DeviceTimer& timer : timers_) {
      for (const auto& [stage, time] : timer.milliseconds()) milliseconds[stage] += time;
    }
    timers_.clear();
    is_complete_ = true;
  }
  void send(const double* from, std::vector<DeviceTimer> timers, cudaStream_t stream) {
    const std::size_t bytes = numbers.size() * sizeof(double);
    check(cudaMemcpyAsync(place_, from, bytes, cudaMemcpyDeviceToHost, stream), "copying numbers");
    sent_.record(stream);
    timers_ = std::move(timers);
  }

 private:
  const int device_;
  const std::shared_ptr<Places> places_;
  double* const place_;
  DeviceEvent sent_;
  std::mutex mutex_;
  std::vector<DeviceTimer> timers_;
  std::atomic<bool> is_complete_{false};
};

class CudaMachine final : public Machine {
 public:
  CudaMachine(int device, cudaStream_t stream) : device_(device), stream_(stream) { workspace_.capacities.emplace(); }

  bool gives_sh_factors() const override { return true; }

  void begin() override {
    guard_.emplace(device_);
    pass_.emplace();
    timers_.clear();
  }
  void end(bool failed) noexcept override {
    if (failed) cudaStreamSynchronize(stream_);
    pass_.reset();
    timers_.clear();
    guard_.reset();
  }
  void* take(std::size_t bytes) override { return device_take(bytes, stream_); }
  void give(void* memory) noexcept override { device_give(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream_), "copying numbers");
  }
  std::shared_ptr<Report> report(std::size_t numbers) override {
    return std::make_shared<CudaReport>(device_, stream_, numbers, places_);
  }

  void forward(const Drawing& d, const gaussians::Outputs& outputs) override {
    workspace_.poses = d.poses;
    workspace_.films = d.films;
    workspace_.sensors = d.sensors;
    timers_.push_back(
        gaussians::cuda_forward(d.views, d.count, *d.settings, *d.scene, outputs, *pass_, workspace_, stream_));
  }
  void backward(const Drawing& d, const gaussians::Upstream& upstream, const gaussians::Gradients& to) override {
    workspace_.poses = d.poses;
    workspace_.films = d.films;
    workspace_.sensors = d.sensors;
    timers_.push_back(
        gaussians::cuda_backward(d.views, d.count, *d.settings, *d.scene, upstream, to, *pass_, workspace_, stream_));
  }
  void image_loss(const training::ImageLoss& loss, double* values) override {
    timers_.push_back(training::cuda_image_loss(loss, values, stream_));
  }
  void plane_loss(const std::vector<training::PlaneLoss>& views, double* values) override {
    timers_.push_back(training::cuda_plane_loss(views, values, stream_));
  }
  void expose(const training::Exposure& view) override { training::cuda_expose(view, stream_); }
  void expose_backward(const training::Exposure& view, float* matrix) override {
    training::cuda_expose_backward(view, matrix, stream_);
  }
  void center_exposures(float* matrices, std::int64_t views) override {
    training::cuda_center_exposures(matrices, views, stream_);
  }
  void draw_pose(const double* pose, gaussians::Pose* to) override { cuda_draw_pose(pose, to, stream_); }
  void motion_gradient(const double* sums, const double* pose, float* gradient) override {
    cuda_motion_gradient(sums, pose, gradient, stream_);
  }
  void move_pose(double* pose, const float* motion) override { cuda_move_pose(pose, motion, stream_); }
  void draw_sensor(const double* start, const double* end, bool rolling, gaussians::SensorPose* sensor,
                   gaussians::Pose* to) override {
    cuda_draw_sensor(start, end, rolling, sensor, to, stream_);
  }
  void sensor_motion_gradients(const double* pose_sums, const double* sensor_sums, const double* start,
                               const double* end, bool rolling, float* to_start, float* to_end) override {
    cuda_sensor_motion_gradients(pose_sums, sensor_sums, start, end, rolling, to_start, to_end, stream_);
  }
  void draw_film(const double* own, const float* offsets, const gaussians::View& view, gaussians::Film* to) override {
    cuda_draw_film(own, offsets, view, to, stream_);
  }
  void film_gradient(const double* sums, const double* own, const float* offsets, bool adds, float* gradient) override {
    cuda_film_gradient(sums, own, offsets, adds, gradient, stream_);
  }
  void step_calibration(const Adam& adam, double rate, const Calibration& from, NextCalibration* next) override {
    cuda_step_calibration(adam, rate, from, next, stream_);
  }
  void check_film(const double* own, NextCalibration* next) override { cuda_check_film(own, next, stream_); }
  void keep_calibration(const NextCalibration* next, const Calibration& to) override {
    cuda_keep_calibration(next, to, stream_);
  }
  void mean(const training::Mean& values, double* to) override {
    timers_.push_back(training::cuda_mean(values, to, stream_));
  }
  void count_touched(const std::int32_t* touched, std::int64_t count, std::uint8_t* rows, double* to) override {
    training::cuda_count_touched(touched, count, rows, to, stream_);
  }
  void accumulate(const density::Observed& observed, const density::Statistics& to) override {
    density::cuda_accumulate(observed, to, stream_);
  }
  void adam(const std::vector<training::AdamGroup>& groups, const training::AdamSettings& settings,
            double* sums) override {
    timers_.push_back(training::cuda_adam(groups.data(), static_cast<int>(groups.size()), settings, sums, stream_));
  }
  void add_noise(const density::Gaussians& rows, const density::Draw& draw, float strength) override {
    density::cuda_add_noise(rows, draw, strength, stream_);
  }
  void send(const double* numbers, Report& report) override {
    static_cast<CudaReport&>(report).send(numbers, std::move(timers_), stream_);
  }

 private:
  const int device_;
  const cudaStream_t stream_;
  const std::shared_ptr<Places> places_ = std::make_shared<Places>();
  gaussians::CudaWorkspace workspace_{};
  std::optional<DeviceGuard> guard_;
  std::optional<gaussians::CudaPass> pass_;
  std::vector<DeviceTimer> timers_;
};

}  // namespace

std::shared_ptr<Machine> make_cuda_machine(int device, cudaStream_t stream) {
  const DeviceGuard guard(device);
  return std::make_shared<CudaMachine>(device, stream);
}

}  // namespace lumigrad::resident
