#include "resident/training.h"

#include <optional>

#include "common/threads.h"
#include "resident/refinement.h"

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

// The world pose of a scene's single slice: the identity.
constexpr gaussians::SlicePose kSlicePose{{1, 0, 0, 0, 1, 0, 0, 0, 1}, {0, 0, 0}, {0, 0, 0}, 0.0, {0, 0, 0}, -1};

}  // namespace

// Offsets of the numbers of a step in its report, see `Training`.
struct Places {
  explicit Places(const Binding& b)
      : color(1),
        depth(color + static_cast<std::size_t>(b.views) * training::kLossValues),
        alpha(depth + planes(b, b.loss.depth)),
        surface(alpha + planes(b, b.loss.alpha)),
        means(surface + (b.loss.normal != 0.0f) + (b.loss.distortion != 0.0f)),
        sums(means + b.loss.terms.size()),
        end(sums + b.optimizer.parameters.size() * training::kAdamSums) {}
  static std::size_t planes(const Binding& b, float weight) {
    return weight == 0.0f ? 0 : static_cast<std::size_t>(b.views) * training::kPlaneValues;
  }
  const std::size_t color, depth, alpha, surface, means, sums, end;
};

// A step, from its views to its report.
class Training::Step {
 public:
  Step(Training& training, std::uint64_t number, const std::vector<std::uint32_t>& views)
      : b_(training.binding_), machine_(*training.machine_), places_(b_), number_(number) {
    for (const std::uint32_t each : views) {
      const TrainedView& view = training.views_->at(each);
      trained_.push_back(&view);
      views_.push_back(view.view);
      poses_.push_back(view.pose);
      if (view.sensor) sensors_.push_back(*view.sensor);
      if (view.sphere_view) sphere_views_.push_back(*view.sphere_view);
    }
    settings_ = trained_[0]->settings;
    settings_.sh_degree = b_.sh_degree;
    scene_ = b_.scene;
    scene_.slices = 1;
    slice_begins_[1] = scene_.count;
    scene_.slice_begins = slice_begins_;
    scene_.poses = poses_.data();
    scene_.sensors = sensors_.empty() ? nullptr : sensors_.data();
    scene_.slice_poses = &kSlicePose;
  }

  std::shared_ptr<Report> run(const std::vector<std::uint32_t>& views) {
    const std::shared_ptr<Report> report = machine_.report(places_.end);
    const Memory<double> found(machine_, places_.end);
    const bool has_normal = b_.loss.normal != 0.0f, has_distortion = b_.loss.distortion != 0.0f;
    const bool has_depth = b_.loss.depth != 0.0f || has_normal || has_distortion;
    const bool has_alpha = b_.loss.alpha != 0.0f || has_normal;
    const Memory<float> color(machine_, values()), transmittance(machine_, b_.spheres ? 0 : pixels());
    const Memory<float> depth(machine_, has_depth ? pixels() : 0), expected(machine_, has_depth ? pixels() : 0);
    const Memory<float> alpha(machine_, has_alpha ? pixels() : 0);
    const Memory<float> normals(machine_, has_normal ? 3 * pixels() : 0);
    const Memory<float> distortion(machine_, has_distortion ? pixels() : 0);
    const Memory<std::int32_t> radii(machine_, b_.observation ? 2 * items() : 0);
    gaussians::Outputs outputs{};
    outputs.color = color.data();
    outputs.transmittance = transmittance.data();
    outputs.depth = depth.data();
    outputs.expected_depth = expected.data();
    outputs.alpha = alpha.data();
    outputs.normals = normals.data();
    outputs.distortion = distortion.data();
    outputs.radii = radii.data();
    PoseStep posing(machine_, b_.poses ? &*b_.poses : nullptr, views, sensors_);
    FilmStep filming(machine_, b_.intrinsics ? &*b_.intrinsics : nullptr, views, views_);
    poses_on_device_ = posing.drawn();
    films_on_device_ = filming.drawn();
    sensors_on_device_ = posing.sensors();
    draw(outputs);
    const Exposures* exposures = b_.exposures && b_.loss.compares_color() ? &*b_.exposures : nullptr;
    ExposureStep exposing(machine_, exposures, views);
    const Memory<float> exposed(machine_, exposures ? values() : 0);
    if (exposures != nullptr) exposing.expose(color.data(), exposed.data(), pixels() / views.size());
    const Memory<float> d_color(machine_, b_.loss.compares_color() ? values() : 0);
    const Memory<float> d_depth(machine_, compares_depth() || has_normal ? pixels() : 0);
    const Memory<float> d_alpha(machine_, compares_alpha() || has_normal ? pixels() : 0);
    const Memory<float> d_normals(machine_, has_normal ? 3 * pixels() : 0);
    const Memory<float> d_distortion(machine_, has_distortion ? pixels() : 0);
    if (d_color.data() != nullptr) {
      compare(exposures != nullptr ? exposed.data() : color.data(), d_color.data(), found.data() + places_.color);
    }
    if (compares_depth()) {
      compare(expected.data(), &TrainedView::depth, d_depth.data(), b_.loss.depth, true, found.data() + places_.depth);
    }
    if (compares_alpha()) {
      compare(alpha.data(), &TrainedView::mask, d_alpha.data(), b_.loss.alpha, false, found.data() + places_.alpha);
    }
    if (has_normal || has_distortion) {
      machine_.surface_terms({views_.data(), poses_.data(), static_cast<int>(views_.size()), b_.loss.normal,
                              b_.loss.distortion, alpha.data(), normals.data(), expected.data(), distortion.data(),
                              d_alpha.data(), d_normals.data(), d_depth.data(), d_distortion.data(), compares_alpha(),
                              compares_depth(), found.data() + places_.surface});
    }
    if (exposures != nullptr) exposing.differentiate(color.data(), d_color.data(), pixels() / views.size());
    gaussians::Upstream upstream{};
    upstream.color = color.data();
    upstream.transmittance = transmittance.data();
    upstream.depth = depth.data();
    upstream.normals = normals.data();
    upstream.distortion = distortion.data();
    upstream.d_color = d_color.data();
    upstream.d_expected_depth = d_depth.data();
    upstream.d_alpha = d_alpha.data();
    upstream.d_normals = d_normals.data();
    upstream.d_distortion = d_distortion.data();
    differentiate(upstream, radii.data(), found.data(), exposing, posing, filming);
    machine_.send(found.data(), *report);
    return report;
  }

 private:
  Drawing drawing() const {
    return {views_.data(),     static_cast<int>(views_.size()), &settings_, &scene_, poses_on_device_, films_on_device_,
            sensors_on_device_};
  }
  void draw(const gaussians::Outputs& outputs) {
    if (b_.spheres) {
      machine_.forward_spheres(*b_.spheres, sphere_views_, outputs.color, outputs.alpha);
    } else {
      machine_.forward(drawing(), outputs);
    }
  }
  std::size_t pixels() const { return views_.size() * views_[0].width * views_[0].height; }
  std::size_t values() const { return pixels() * scene_.channels; }
  std::size_t rows() const { return static_cast<std::size_t>(scene_.count); }
  std::size_t items() const { return views_.size() * rows(); }
  // All views of a step have the same target planes.
  bool compares_depth() const { return b_.loss.depth != 0.0f && trained_[0]->depth.data != nullptr; }
  bool compares_alpha() const { return b_.loss.alpha != 0.0f && trained_[0]->mask.data != nullptr; }

  // Computes the loss of each view's colours and its gradient.
  void compare(const float* color, float* gradient, double* numbers) {
    const std::size_t each = values() / views_.size();
    for (std::size_t v = 0; v < views_.size(); ++v) {
      machine_.image_loss({.image = color + v * each,
                           .target = trained_[v]->color,
                           .mask = trained_[v]->mask,
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

  // Computes the loss of other planes [views, height, width], and its gradient.
  void compare(const float* planes, training::Plane TrainedView::* target, float* gradient, float weight, bool known,
               double* numbers) {
    const std::size_t each = pixels() / views_.size();
    std::vector<training::PlaneLoss> views;
    for (std::size_t v = 0; v < views_.size(); ++v) {
      views.push_back({planes + v * each, trained_[v]->*target, gradient + v * each, static_cast<std::int64_t>(each),
                       known, weight});
    }
    machine_.plane_loss(views, numbers);
  }

  // Whether the gradient of harmonics is given by factors, as `gives_sh_factors` of the Python package decides.
  bool has_factors() const {
    constexpr int kLeastCoefficients = 4;
    return machine_.gives_sh_factors() && views_.size() == 1 && scene_.coefficients >= kLeastCoefficients &&
           scene_.channels == 3;
  }

  // Computes the gradients of all parameters, then changes them.
  void differentiate(const gaussians::Upstream& upstream, const std::int32_t* radii, double* numbers,
                     ExposureStep& exposing, PoseStep& posing, FilmStep& filming) {
    std::vector<training::AdamGroup> groups = b_.optimizer.groups(number_);
    const training::AdamSettings settings = b_.optimizer.adam.settings(number_);
    gaussians::Gradients to{};
    spheres::Gradients to_spheres{};
    std::vector<Memory<float>> gradients;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const std::string& name = b_.optimizer.parameters[i].name;
      const bool by_factors = name == "sh" && has_factors();
      const std::size_t width = by_factors ? gaussians::kShFactors : groups[i].width;
      float* memory = gradients.emplace_back(machine_, rows() * width).data();
      if (b_.spheres) {
        point(to_spheres, name, memory);
      } else {
        point(to, name, by_factors, memory);
      }
      groups[i].degree = by_factors ? b_.sh_degree : 0;
      (by_factors ? groups[i].factors : reinterpret_cast<const float*&>(groups[i].gradient)) = memory;
    }
    const Memory<std::int32_t> touched(machine_, rows());
    to.touched = to_spheres.touched = touched.data();
    const bool observes = b_.observation.has_value();
    const Memory<float> means2d(machine_, observes ? 2 * items() : 0);
    if (observes) (b_.observation->is_absolute ? to.means2d_abs : to.means2d) = means2d.data();
    to.poses = posing.sums();
    to.sensors = posing.sensor_sums();
    if (settings_.rays) to.inverse_windshield = posing.glass_sums();
    to.intrinsics = filming.sums();
    if (b_.spheres) {
      spheres::Upstream images{};
      images.color = upstream.color;
      images.d_color = upstream.d_color;
      images.d_alpha = upstream.d_alpha;
      machine_.backward_spheres(*b_.spheres, images, to_spheres);
    } else {
      machine_.backward(drawing(), upstream, to);
    }
    double* means = numbers + places_.means;
    for (const Term& term : b_.loss.terms) {
      float* gradient = term.parameter < 0 ? nullptr : gradients[static_cast<std::size_t>(term.parameter)].data();
      machine_.mean({term.values, term.count, gradient, term.slope}, means++);
    }
    const Memory<std::uint8_t> visible(machine_, b_.optimizer.visible_only ? rows() : 0);
    machine_.count_touched(touched.data(), scene_.count, visible.data(), numbers);
    for (training::AdamGroup& group : groups) group.rows = visible.data();
    exposing.prepare(b_.optimizer, number_);
    posing.prepare(b_.optimizer, number_);
    filming.prepare(b_.optimizer, number_);
    check_stop();
    const Unstoppable unstoppable;
    change(groups, settings, means2d.data(), radii, numbers + places_.sums);
    exposing.change();
    posing.change();
    filming.change();
  }

  // Only the first call may fail, since it allocates memory, and only before it changes anything.
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

  static void point(spheres::Gradients& to, const std::string& name, float* memory) {
    if (name == "positions")
      to.positions = memory;
    else if (name == "colors")
      to.colors = memory;
    else if (name == "radii")
      to.radii = memory;
    else if (name == "opacities")
      to.opacities = memory;
    else
      throw std::invalid_argument("the parameter '" + name + "' has no gradient");
  }

  const Binding& b_;
  Machine& machine_;
  const Places places_;
  const std::uint64_t number_;
  std::vector<const TrainedView*> trained_;
  std::vector<gaussians::View> views_;
  std::vector<gaussians::Pose> poses_;
  const gaussians::Pose* poses_on_device_ = nullptr;
  const gaussians::Film* films_on_device_ = nullptr;
  const gaussians::SensorPose* sensors_on_device_ = nullptr;
  std::vector<gaussians::Sensor> sensors_;
  std::vector<SphereView> sphere_views_;
  gaussians::Settings settings_;
  std::int32_t slice_begins_[2] = {0, 0};
  gaussians::Scene scene_;
};

std::shared_ptr<Report> Training::step(std::uint64_t number, const std::vector<std::uint32_t>& views) {
  if (number != next_) throw OutOfTurn();
  if (views.size() != static_cast<std::size_t>(binding_.views)) throw std::invalid_argument("another number of views");
  Turn turn(*machine_);
  std::shared_ptr<Report> report = Step(*this, number, views).run(views);
  turn.done();
  ++next_;
  return report;
}

}  // namespace lumigrad::resident
