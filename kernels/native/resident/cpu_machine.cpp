// Steps on the CPU, with the loops of the instruction set in use.
#include <algorithm>
#include <cstring>
#include <optional>

#include "common/pool.h"
#include "common/threads.h"
#include "density/cpu/engine.h"
#include "gaussians/cpu/engine.h"
#include "resident/machine.h"
#include "resident/pose.h"
#include "spheres/cpu/engine.h"
#include "training/cpu/engine.h"

namespace lumigrad::resident {
namespace {

class CpuReport final : public Report {
 public:
  bool is_complete() const override { return true; }
  void wait() override {}
};

// The forward pass of spheres, for the backward pass: the workspace, its contents after each view, the cameras with
// their depth range, and images.
struct SpherePass {
  spheres::Workspace workspace;
  std::vector<std::uint64_t> prepared;
  std::vector<spheres::Camera> cameras;
  Array<float> info, blend;
  Array<std::int32_t> stop;
};

// Memory that the passes of a step keep.
struct Kept {
  gaussians::Workspace gaussians;
  gaussians::Pass pass;
  SpherePass spheres;
  training::Workspace training;
  std::map<std::string, double> milliseconds;

  void add(const char* stage, double time) {
    if (time > 0.0) milliseconds[stage] += time;
  }
  void add_stages() {
    for (int i = 0; i < kMaxStages; ++i) add(gaussians::kStageNames[i], gaussians.milliseconds[i]);
  }
  void add_sphere_stages(int count) {
    static constexpr const char* kNames[] = {"setup", "sort", "bin", "blend", "finish"};
    for (int i = 0; i < count; ++i) add(kNames[i], spheres.workspace.milliseconds[i]);
  }
};

// The views of a drawing and their scene, with what is refined on the device.
struct Drawn {
  explicit Drawn(const Drawing& d) : views(d.views, d.views + d.count), scene(*d.scene) {
    if (d.poses != nullptr) scene.poses = d.poses;
    for (int v = 0; d.films != nullptr && v < d.count; ++v) {
      std::memcpy(&views[v].fx, d.films + v, sizeof(gaussians::Film));
    }
    if (d.sensors == nullptr) return;
    sensors.assign(scene.sensors, scene.sensors + d.count);
    for (int v = 0; v < d.count; ++v) std::memcpy(sensors[v].rotation, d.sensors + v, sizeof(gaussians::SensorPose));
    scene.sensors = sensors.data();
  }
  Drawn(const Drawn&) = delete;
  Drawn& operator=(const Drawn&) = delete;

  std::vector<gaussians::View> views;
  std::vector<gaussians::Sensor> sensors;
  gaussians::Scene scene;
};

template <class T>
T* at(T* array, std::size_t offset) {
  return array == nullptr ? nullptr : array + offset;
}

// Sums of gradients over views, in their order: the first view writes to the sums, each of the others to an array of
// its own that is then added.
class SphereSum {
 public:
  SphereSum(Machine& machine, const spheres::Scene& scene, const spheres::Gradients& to, std::size_t views)
      : to_(to), rows_(static_cast<std::size_t>(scene.count)), channels_(static_cast<std::size_t>(scene.channels)) {
    if (views < 2) return;
    const auto like = [&](const float* total, std::size_t width) {
      return added_.emplace_back(machine, total == nullptr ? 0 : rows_ * width).data();
    };
    part_.positions = like(to.positions, 3);
    part_.colors = like(to.colors, channels_);
    part_.radii = like(to.radii, 1);
    part_.opacities = like(to.opacities, 1);
    touched_.emplace(machine, rows_);
    part_.touched = touched_->data();
  }
  // Returns where the next view writes its gradients.
  const spheres::Gradients& next() const { return is_first_ ? to_ : part_; }
  // Adds what the view has written.
  void add() {
    if (!std::exchange(is_first_, false)) {
      add(to_.positions, part_.positions, 3 * rows_);
      add(to_.colors, part_.colors, channels_ * rows_);
      add(to_.radii, part_.radii, rows_);
      add(to_.opacities, part_.opacities, rows_);
      add(to_.touched, part_.touched, rows_);
    }
  }

 private:
  template <class T>
  static void add(T* total, const T* part, std::size_t count) {
    for (std::size_t i = 0; part != nullptr && i < count; ++i) total[i] += part[i];
  }

  const spheres::Gradients& to_;
  spheres::Gradients part_{};
  const std::size_t rows_, channels_;
  std::vector<Memory<float>> added_;
  std::optional<Memory<std::int32_t>> touched_;
  bool is_first_ = true;
};

class CpuMachine final : public Machine {
 public:
  bool gives_sh_factors() const override { return false; }

  void begin() override { kept_.emplace(); }
  void end(bool) noexcept override { kept_.reset(); }
  void* take(std::size_t bytes) override { return pool_take(bytes); }
  void give(void* memory) noexcept override { pool_give(memory); }
  void copy(void* to, const void* from, std::size_t bytes) override { std::memcpy(to, from, bytes); }
  std::shared_ptr<Report> report(std::size_t numbers) override {
    auto report = std::make_shared<CpuReport>();
    report->numbers.resize(numbers);
    return report;
  }

  void forward(const Drawing& d, const gaussians::Outputs& outputs) override {
    const Drawn drawn(d);
    kept_->pass.prepare(d.count, true);
    for (int view = 0; view < d.count; ++view) {
      check_stop();
      gaussians::cpu_engine(current_isa())
          .forward_view(drawn.views.data(), view, *d.settings, drawn.scene, outputs, kept_->pass, kept_->gaussians);
      kept_->add_stages();
    }
  }
  void backward(const Drawing& d, const gaussians::Upstream& upstream, const gaussians::Gradients& to) override {
    const gaussians::CpuEngine engine = gaussians::cpu_engine(current_isa());
    const Drawn drawn(d);
    for (int view = 0; view < d.count; ++view) {
      check_stop();
      engine.blend_backward(drawn.views.data(), view, *d.settings, drawn.scene, upstream, to, kept_->pass,
                            kept_->gaussians);
      kept_->add_stages();
    }
    engine.project_backward(drawn.views.data(), d.count, *d.settings, drawn.scene, upstream, to, false, kept_->pass,
                            kept_->gaussians);
    kept_->add_stages();
  }
  void forward_spheres(const Spheres& s, const std::vector<SphereView>& views, float* color, float* alpha) override {
    SpherePass& pass = kept_->spheres;
    const std::size_t count = views.size();
    pass.cameras.resize(count);
    set_depth_range(s, views.data(), pass.cameras.data(), static_cast<int>(count));
    spheres::Settings settings = s.settings;
    if (settings.exact) settings.n_track = 0;
    const std::size_t pixels = static_cast<std::size_t>(pass.cameras[0].width) * pass.cameras[0].height;
    const std::size_t channels = s.scene.channels, width = info_width(s);
    if (settings.exact) {
      pass.blend = Array<float>(count * pixels * kBlend);
      pass.stop = Array<std::int32_t>(count * pixels);
    } else {
      pass.info = Array<float>(count * pixels * width);
    }
    for (std::size_t v = 0; v < count; ++v) {
      check_stop();
      spheres::Outputs to{};
      to.color = color + v * pixels * channels;
      to.alpha = at(alpha, v * pixels);
      to.info = at(pass.info.data(), v * pixels * width);
      to.blend = at(pass.blend.data(), v * pixels * kBlend);
      to.stop = at(pass.stop.data(), v * pixels);
      spheres::cpu_engine(current_isa()).forward(pass.cameras[v], settings, s.scene, to, pass.workspace);
      pass.prepared.push_back(pass.workspace.prepared);
      kept_->add_sphere_stages(spheres::kFinishStage);
    }
  }
  void backward_spheres(const Spheres& s, const spheres::Upstream& images, const spheres::Gradients& to) override {
    SpherePass& pass = kept_->spheres;
    const std::size_t count = pass.cameras.size(), channels = s.scene.channels, width = info_width(s);
    const std::size_t pixels = static_cast<std::size_t>(pass.cameras[0].width) * pass.cameras[0].height;
    SphereSum sum(*this, s.scene, to, count);
    for (std::size_t v = 0; v < count; ++v) {
      check_stop();
      spheres::Upstream view{};
      view.color = images.color + v * pixels * channels;
      view.info = at(pass.info.data(), v * pixels * width);
      view.blend = at(pass.blend.data(), v * pixels * kBlend);
      view.stop = at(pass.stop.data(), v * pixels);
      view.d_color = at(images.d_color, v * pixels * channels);
      view.d_alpha = at(images.d_alpha, v * pixels);
      spheres::cpu_engine(current_isa())
          .backward(pass.cameras[v], s.settings, s.scene, view, sum.next(), pass.prepared[v], pass.workspace);
      sum.add();
      kept_->add_sphere_stages(spheres::kFinishStage + 1);
    }
  }
  void image_loss(const training::ImageLoss& loss, double* values) override {
    training::cpu_engine(current_isa()).image_loss(loss, values, kept_->training);
    kept_->add("image_loss", kept_->training.milliseconds[0]);
  }
  void plane_loss(const std::vector<training::PlaneLoss>& views, double* values) override {
    training::cpu_engine(current_isa())
        .plane_loss(views.data(), static_cast<int>(views.size()), values, kept_->training);
    kept_->add("plane_loss", kept_->training.milliseconds[0]);
  }
  void surface_terms(const SurfaceTerms& t) override {
    const training::CpuEngine engine = training::cpu_engine(current_isa());
    const std::int64_t each = std::int64_t{t.views[0].width} * t.views[0].height, pixels = t.count * each;
    double* value = t.values;
    if (t.normal != 0.0) normal_terms(t, each, value++);
    if (t.distortion != 0.0) {
      engine.mean({t.distortions, pixels, nullptr, 0.0f}, value, kept_->training);
      std::fill(t.d_distortions, t.d_distortions + pixels,
                static_cast<float>(t.distortion / static_cast<double>(pixels)));
    }
  }
  void expose(const training::Exposure& view) override { training::cpu_engine(current_isa()).expose(view); }
  void expose_backward(const training::Exposure& view, float* matrix) override {
    training::cpu_engine(current_isa()).expose_backward(view, matrix, kept_->training);
  }
  void center_exposures(float* matrices, std::int64_t views) override {
    training::cpu_engine(current_isa()).center_exposures(matrices, views);
  }
  void draw_pose(const double* pose, gaussians::Pose* to) override { *to = drawn_pose(pose); }
  void motion_gradient(const double* sums, const double* pose, float* gradient) override {
    resident::motion_gradient(sums, pose, gradient);
  }
  void move_pose(double* pose, const float* motion) override { resident::move_pose(pose, motion); }
  void draw_sensor(const double* start, const double* end, bool rolling, gaussians::SensorPose* sensor,
                   gaussians::Pose* to) override {
    resident::draw_sensor(start, end, rolling, sensor, to);
  }
  void sensor_motion_gradients(const double* pose_sums, const double* sensor_sums, const double* start,
                               const double* end, bool rolling, float* to_start, float* to_end) override {
    resident::sensor_motion_gradients(pose_sums, sensor_sums, start, end, rolling, to_start, to_end);
  }
  void draw_film(const double* own, const float* offsets, const gaussians::View& view, gaussians::Film* to) override {
    *to = drawn_film(own, offsets, view.width, view.height, view.model == gaussians::Model::pinhole);
  }
  void film_gradient(const double* sums, const double* own, const float* offsets, bool adds, float* gradient) override {
    resident::film_gradient(sums, own, offsets, adds, gradient);
  }
  void step_calibration(const Adam& adam, double rate, const Calibration& from, NextCalibration* next) override {
    begin_step(from, next);
    training::AdamGroup group{};
    group.raw = next->values;
    group.first = next->first;
    group.second = next->second;
    group.gradient = next->gradient;
    group.count = 1;
    group.width = kFilm;
    const auto done = static_cast<std::uint64_t>(*from.steps);
    group.step_size = adam.step_size(rate, done);
    double sums[training::kAdamSums];
    this->adam({group}, adam.settings(done), sums);
  }
  void check_film(const double* own, NextCalibration* next) override { resident::check_film(own, next); }
  void keep_calibration(const NextCalibration* next, const Calibration& to) override { end_step(*next, to); }
  void mean(const training::Mean& values, double* to) override {
    training::cpu_engine(current_isa()).mean(values, to, kept_->training);
    kept_->add("mean", kept_->training.milliseconds[0]);
  }
  void count_touched(const std::int32_t* touched, std::int64_t count, std::uint8_t* rows, double* to) override {
    training::cpu_engine(current_isa()).count_touched(touched, count, rows, to, kept_->training);
  }
  void accumulate(const density::Observed& observed, const density::Statistics& to) override {
    density::cpu_engine(current_isa()).accumulate(observed, to);
  }
  void adam(const std::vector<training::AdamGroup>& groups, const training::AdamSettings& settings,
            double* sums) override {
    training::cpu_engine(current_isa())
        .adam(groups.data(), static_cast<int>(groups.size()), settings, sums, kept_->training);
    kept_->add("adam", kept_->training.milliseconds[0]);
  }
  void add_noise(const density::Gaussians& rows, const density::Draw& draw, float strength) override {
    density::cpu_engine(current_isa()).add_noise(rows, draw, strength);
  }
  void send(const double* numbers, Report& report) override {
    std::copy(numbers, numbers + report.numbers.size(), report.numbers.begin());
    report.milliseconds.swap(kept_->milliseconds);
  }

 private:
  static constexpr std::size_t kBlend = 3;
  static std::size_t info_width(const Spheres& s) { return 3 + 2 * static_cast<std::size_t>(s.settings.n_track); }

  void normal_terms(const SurfaceTerms& t, std::int64_t each, double* value) {
    const training::CpuEngine engine = training::cpu_engine(current_isa());
    const std::int64_t pixels = t.count * each;
    const Memory<float> surface(*this, 3 * pixels), d_surface(*this, 3 * pixels);
    std::vector<training::Surface> views;
    for (int v = 0; v < t.count; ++v) {
      const gaussians::View& view = t.views[v];
      views.push_back({t.expected_depth + v * each, view.height, view.width, view.fx, view.fy, view.cx, view.cy, {}});
      std::copy(t.poses[v].rotation, t.poses[v].rotation + 9, views.back().rotation);
      engine.surface_normals(views.back(), surface.data() + 3 * v * each);
    }
    const auto slope = static_cast<float>(t.normal / static_cast<double>(pixels));
    engine.normal_loss(
        {t.alpha, t.normals, surface.data(), t.d_alpha, t.d_normals, d_surface.data(), pixels, slope, t.adds_alpha},
        value, kept_->training);
    for (int v = 0; v < t.count; ++v) {
      engine.surface_backward(views[v], d_surface.data() + 3 * v * each, t.d_expected_depth + v * each, t.adds_depth,
                              nullptr, kept_->training);
    }
  }

  std::optional<Kept> kept_;
};

}  // namespace

std::shared_ptr<Machine> make_cpu_machine() { return std::make_shared<CpuMachine>(); }

}  // namespace lumigrad::resident
