#include "resident/training.h"

#include <optional>

#include "common/threads.h"

namespace lumigrad::resident {
namespace {

using training::kAdamSums;
using training::kLossValues;

// While it lives, the machine is in a step.
class Turn {
 public:
  explicit Turn(Machine& machine) : machine_(machine) { machine.begin(); }
  ~Turn() { machine_.end(!is_done_); }
  void done() { is_done_ = true; }

 private:
  Machine& machine_;
  bool is_done_ = false;
};

// While it lives, this thread heeds no request to stop.
class Unstoppable {
 public:
  Unstoppable() : request_(heed(nullptr)) {}
  ~Unstoppable() { heed(request_); }

 private:
  const StopRequest* request_;
};

// The pose of scenes that are one slice, in the world.
constexpr gaussians::SlicePose kSlicePose{{1, 0, 0, 0, 1, 0, 0, 0, 1}, {0, 0, 0}, {0, 0, 0}, 0.0, {0, 0, 0}, -1};

}  // namespace

// One step, from its views to its report.
class Training::Step {
 public:
  Step(Training& training, std::uint64_t number, const std::vector<std::uint32_t>& views)
      : b_(training.binding_), machine_(*training.machine_), number_(number) {
    for (const std::uint32_t each : views) {
      const TrainedView& view = training.views_->at(each);
      views_.push_back(view.view);
      poses_.push_back(view.pose);
      targets_.push_back(view.target);
    }
    scene_ = b_.scene;
    scene_.slices = 1;
    slice_begins_[1] = scene_.count;
    scene_.slice_begins = slice_begins_;
    scene_.poses = poses_.data();
    scene_.slice_poses = &kSlicePose;
  }

  std::shared_ptr<Report> run(std::size_t numbers) {
    const std::shared_ptr<Report> report = machine_.report(numbers);
    const Memory<double> found(machine_, numbers);
    const Memory<float> color(machine_, values()), transmittance(machine_, pixels()), d_color(machine_, values());
    const bool observes = b_.observation.has_value();
    const Memory<std::int32_t> radii(machine_, observes ? 2 * items() : 0);
    gaussians::Outputs outputs{};
    outputs.color = color.data();
    outputs.transmittance = transmittance.data();
    outputs.radii = radii.data();
    machine_.forward(drawing(), outputs);
    compare(color.data(), d_color.data(), found.data() + 1);
    gaussians::Upstream upstream{};
    upstream.color = color.data();
    upstream.transmittance = transmittance.data();
    upstream.d_color = d_color.data();
    differentiate(upstream, radii.data(), found.data());
    machine_.send(found.data(), *report);
    return report;
  }

 private:
  Drawing drawing() const { return {views_.data(), static_cast<int>(views_.size()), &b_.settings, &scene_}; }
  std::size_t pixels() const { return views_.size() * views_[0].width * views_[0].height; }
  std::size_t values() const { return pixels() * scene_.channels; }
  std::size_t rows() const { return static_cast<std::size_t>(scene_.count); }
  std::size_t items() const { return views_.size() * rows(); }

  // The loss of each view, and its gradient.
  void compare(const float* color, float* gradient, double* numbers) {
    const std::size_t each = values() / views_.size();
    for (std::size_t v = 0; v < views_.size(); ++v) {
      machine_.image_loss({.image = color + v * each,
                           .target = targets_[v],
                           .mask = {nullptr, true},
                           .gradient = gradient + v * each,
                           .views = 1,
                           .height = views_[v].height,
                           .width = views_[v].width,
                           .channels = scene_.channels,
                           .l1 = b_.loss.l1,
                           .l2 = b_.loss.l2,
                           .dssim = b_.loss.dssim,
                           .valid = b_.loss.valid,
                           .view_weight = 1.0 / static_cast<double>(views_.size())},
                          numbers + v * kLossValues);
    }
  }

  // Whether the gradient of harmonics is given by factors, as Gaussians' `gives_sh_factors` of the Python package says.
  bool has_factors() const {
    constexpr int kLeastCoefficients = 4;
    return machine_.gives_sh_factors() && views_.size() == 1 && scene_.coefficients >= kLeastCoefficients &&
           scene_.channels == 3;
  }

  // The gradients of all parameters, and then the changes.
  void differentiate(const gaussians::Upstream& upstream, const std::int32_t* radii, double* numbers) {
    std::vector<training::AdamGroup> groups = b_.optimizer.groups(number_);
    const training::AdamSettings settings = b_.optimizer.settings(number_);
    gaussians::Gradients to{};
    std::vector<Memory<float>> gradients;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::string& name = b_.optimizer.parameters[i].name;
      const bool by_factors = name == "sh" && has_factors();
      const std::size_t width = by_factors ? gaussians::kShFactors : groups[i].width;
      float* memory = gradients.emplace_back(machine_, rows() * width).data();
      point(to, name, by_factors, memory);
      groups[i].degree = by_factors ? b_.settings.sh_degree : 0;
      (by_factors ? groups[i].factors : reinterpret_cast<const float*&>(groups[i].gradient)) = memory;
    }
    const Memory<std::int32_t> touched(machine_, rows());
    to.touched = touched.data();
    const bool observes = b_.observation.has_value();
    const Memory<float> means2d(machine_, observes ? 2 * items() : 0);
    if (observes) (b_.observation->is_absolute ? to.means2d_abs : to.means2d) = means2d.data();
    machine_.backward(drawing(), upstream, to);
    double* means = numbers + 1 + views_.size() * kLossValues;
    for (const Term& term : b_.loss.terms) {
      float* gradient = term.parameter < 0 ? nullptr : gradients[static_cast<std::size_t>(term.parameter)].data();
      machine_.mean({term.values, term.count, gradient, term.slope}, means++);
    }
    const Memory<std::uint8_t> visible(machine_, b_.optimizer.visible_only ? rows() : 0);
    machine_.count_touched(touched.data(), scene_.count, visible.data(), numbers);
    for (training::AdamGroup& group : groups) group.rows = visible.data();
    check_stop();
    const Unstoppable unstoppable;
    change(groups, settings, means2d.data(), radii, means);
  }

  // Of this only the first may fail, before it changes anything: it allocates.
  void change(const std::vector<training::AdamGroup>& groups, const training::AdamSettings& settings,
              const float* means2d, const std::int32_t* radii, double* sums) {
    machine_.adam(groups, settings, sums);
    if (b_.noise) {
      const double strength = b_.noise->rate.at(number_) * b_.noise->strength;
      machine_.add_noise(b_.noise->rows, {b_.noise->seed, number_, density::kNoiseStream},
                         static_cast<float>(strength));
    }
    if (b_.observation) observe(means2d, radii);
  }

  void observe(const float* means2d, const std::int32_t* radii) {
    const int width = views_[0].width, height = views_[0].height;
    const double count = static_cast<double>(views_.size());
    machine_.accumulate(
        {.views = static_cast<std::int32_t>(views_.size()),
         .count = scene_.count,
         .axes = 2,
         .gradient = means2d,
         .seen = radii,
         .scale = {static_cast<float>(0.5 * width * count), static_cast<float>(0.5 * height * count), 1.0f},
         .inverse_extent = static_cast<float>(1.0 / (width > height ? width : height))},
        b_.observation->to);
  }

  static void point(gaussians::Gradients& to, const std::string& name, bool by_factors, float* memory) {
    if (name == "means")
      to.means = memory;
    else if (name == "quats")
      to.quats = memory;
    else if (name == "scales")
      to.scales = memory;
    else if (name == "opacities")
      to.opacities = memory;
    else if (name == "colors")
      to.colors = memory;
    else if (name == "sh")
      (by_factors ? to.sh_factors : to.sh) = memory;
    else
      throw std::invalid_argument("the parameter '" + name + "' has no gradient");
  }

  const Binding& b_;
  Machine& machine_;
  const std::uint64_t number_;
  std::vector<gaussians::View> views_;
  std::vector<gaussians::Pose> poses_;
  std::vector<training::Plane> targets_;
  std::int32_t slice_begins_[2] = {0, 0};
  gaussians::Scene scene_;
};

std::size_t Training::numbers() const {
  return 1 + static_cast<std::size_t>(binding_.views) * kLossValues + binding_.loss.terms.size() +
         binding_.optimizer.parameters.size() * kAdamSums;
}

std::shared_ptr<Report> Training::step(std::uint64_t number, const std::vector<std::uint32_t>& views) {
  if (number != next_) throw OutOfTurn();
  if (views.size() != static_cast<std::size_t>(binding_.views)) throw std::invalid_argument("another number of views");
  Turn turn(*machine_);
  std::shared_ptr<Report> report = Step(*this, number, views).run(numbers());
  turn.done();
  ++next_;
  return report;
}

}  // namespace lumigrad::resident
