// Retained renders and their differentiation on the CPU.
#include <iterator>
#include <optional>
#include <span>

#include "common/alone.h"
#include "common/isa.h"
#include "common/threads.h"
#include "serving/cpu_render.h"
#include "serving/passes/retained.h"
#include "spheres/cpu/engine.h"

namespace lumigrad::serving {
namespace {

struct Scratch {
  gaussians::Workspace workspace;
  spheres::Workspace spheres;
  Buffer touched;
  std::vector<std::unique_ptr<Buffer>> values;

  // Returns memory for `count` values of four bytes.
  void* ensure(std::size_t index, std::size_t count) {
    while (values.size() <= index) values.push_back(std::make_unique<Buffer>());
    return values[index]->ensure<float>(count);
  }
};

// An output or a kept image, and where the kernels write it.
struct Target {
  Output output;
  char* to;
};

class CpuRetain : public PayloadJob {
 public:
  CpuRetain(Demand demand, std::shared_ptr<CpuRetained> pass, std::shared_ptr<Scratch> scratch)
      : PayloadJob(std::move(demand)), pass_(std::move(pass)), scratch_(std::move(scratch)) {}

  bool accept(std::string_view) override { return pass_->kind->render->takes(pass_->cameras); }
  std::span<const char* const> stages() const override { return pass_->kind->render->stages(); }
  bool runs_anywhere() const override { return pass_->kind->render->is_small(); }
  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* job : batch) static_cast<CpuRetain*>(job)->draw();
  }

 protected:
  virtual void draw_views() = 0;

  // Pointers to a view of each target.
  template <class Kernels>
  Kernels of_view(int view) const {
    Kernels kernels{};
    for (const auto& [output, to] : targets_) {
      const std::size_t first = view * (output.values / pass_->cameras.size());
      point(kernels, output, to + first * (output.are_color_levels() ? 1 : 4));
    }
    return kernels;
  }

  const std::shared_ptr<CpuRetained> pass_;
  const std::shared_ptr<Scratch> scratch_;

 private:
  void draw() {
    const Render& render = *pass_->kind->render;
    std::optional<Alone> alone;
    if (render.is_small()) alone.emplace();
    const std::vector<const char*> places = place_all(render);
    draw_views();
    const Clock::time_point drawn = Clock::now();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i] != nullptr) encode(render.outputs[i], places[i], payload + render.outputs[i].offset);
    }
    download = 1e3 * seconds_of(Clock::now() - drawn);
  }

  // Returns where the kernels write each output; null for levels, which they write directly to the payload.
  std::vector<const char*> place_all(const Render& render) {
    const std::vector<KeptImage>& images = pass_->kind->images;
    targets_.clear();
    for (std::size_t i = 0; i < images.size(); ++i) {
      const Output image{images[i].name, Encoding::plain, images[i].values, 0};
      targets_.push_back({image, reinterpret_cast<char*>(pass_->image(i))});
    }
    std::vector<const char*> places;
    for (const Output& output : render.outputs) {
      if (output.are_color_levels()) {
        targets_.push_back({output, payload + output.offset});
        places.push_back(nullptr);
        continue;
      }
      std::size_t kept = 0;
      while (kept < images.size() && images[kept].name != output.name) ++kept;
      if (kept == images.size()) {
        targets_.push_back({output, static_cast<char*>(scratch_->ensure(places.size(), output.values))});
        places.push_back(targets_.back().to);
      } else {
        places.push_back(targets_[kept].to);
      }
    }
    return places;
  }

  std::vector<Target> targets_;
};

class GaussianRetain final : public CpuRetain {
 public:
  using CpuRetain::CpuRetain;

 private:
  void draw_views() override {
    const GaussianRender& render = pass_->kind->gaussians();
    const GaussianTargets targets = of_view<GaussianTargets>(0);
    const gaussians::Scene scene = pass_->scene();
    const int views = static_cast<int>(render.views.size());
    pass_->pass.prepare(views, true);
    for (int view = 0; view < views; ++view) {
      draw_view(render, view, scene, targets, pass_->pass, scratch_->workspace, times.data());
    }
  }
};

// Returns the large lists of a workspace of spheres, whether a pass succeeds or fails.
struct DropLists {
  spheres::Workspace& workspace;
  ~DropLists() { workspace.drop_lists(); }
};

class SphereRetain final : public CpuRetain {
 public:
  using CpuRetain::CpuRetain;

 private:
  void draw_views() override {
    const auto& render = static_cast<const SphereRender&>(*pass_->kind->render);
    spheres::Workspace& workspace = scratch_->spheres;
    pass_->prepared.clear();
    for (int view = 0; view < static_cast<int>(pass_->cameras.size()); ++view) {
      check_stop();
      {
        const DropLists after{workspace};
        spheres::cpu_engine(current_isa())
            .forward(render.camera(view, pass_->cameras[view]), render.settings, render.scene,
                     of_view<spheres::Outputs>(view), workspace);
      }
      pass_->prepared.push_back(workspace.prepared);
      for (int i = 0; i < kRenderStages; ++i) times[i] += workspace.milliseconds[i];
    }
  }
};

class CpuBackward final : public BackwardJob {
 public:
  CpuBackward(Demand demand, std::shared_ptr<const BackwardKind> kind, std::shared_ptr<CpuRetained> pass,
              std::shared_ptr<Scratch> scratch)
      : BackwardJob(std::move(demand), std::move(kind)), pass_(std::move(pass)), scratch_(std::move(scratch)) {}

  // The number of threads must stay that of other threads, though: the order of sums follows from it.
  bool runs_anywhere() const override { return pass_->kind->render->is_small(); }
  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* job : batch) static_cast<CpuBackward*>(job)->differentiate();
  }

 private:
  // Returns large rows, whether the pass succeeds or fails.
  struct Rows {
    gaussians::Workspace& workspace;
    ~Rows() { workspace.drop_rows(); }
  };

  void differentiate() {
    const GaussianRender& render = pass_->kind->gaussians();
    const gaussians::Scene scene = pass_->scene();
    const gaussians::Upstream upstream = upstream_of();
    gaussians::Gradients gradients{};
    const std::vector<const void*> results = point_all(gradients);
    gradients.touched = scratch_->touched.ensure<std::int32_t>(scene.count);
    gaussians::Workspace& workspace = scratch_->workspace;
    const Rows rows{workspace};
    const gaussians::CpuEngine engine = gaussians::cpu_engine(current_isa());
    const int views = static_cast<int>(render.views.size());
    for (int view = 0; view < views; ++view) {
      check_stop();
      engine.blend_backward(render.views.data(), view, render.settings, scene, upstream, gradients, pass_->pass,
                            workspace);
      add_times();
    }
    engine.project_backward(render.views.data(), views, render.settings, scene, upstream, gradients, false, pass_->pass,
                            workspace);
    add_times();
    const Clock::time_point done = Clock::now();
    send_all(results, pass_->cameras);
    download = 1e3 * seconds_of(Clock::now() - done);
  }

  gaussians::Upstream upstream_of() const {
    gaussians::Upstream upstream{};
    const std::vector<KeptImage>& images = pass_->kind->images;
    for (std::size_t i = 0; i < images.size(); ++i) point_image(upstream, images[i].name, pass_->image(i));
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      point_incoming(upstream, kind_->incoming[i].name, incoming_[i].data());
    }
    return upstream;
  }

  std::vector<const void*> point_all(gaussians::Gradients& gradients) {
    std::vector<const void*> results;
    for (const auto& [name, bytes] : kind_->results()) {
      void* to = scratch_->ensure(results.size(), bytes / sizeof(float));
      point_gradient(gradients, name, to);
      results.push_back(to);
    }
    return results;
  }

  void add_times() {
    times[0] += scratch_->workspace.milliseconds[gaussians::kBackBlendStage];
    times[1] += scratch_->workspace.milliseconds[gaussians::kBackProjectStage];
  }

  const std::shared_ptr<CpuRetained> pass_;
  const std::shared_ptr<Scratch> scratch_;
};

constexpr const char* kSphereBackwardStages[] = {"kernel.setup", "kernel.sort", "kernel.bin", "kernel.blend",
                                                 "kernel.finish"};

class SphereBackward final : public BackwardJob {
 public:
  SphereBackward(Demand demand, std::shared_ptr<const BackwardKind> kind, std::shared_ptr<CpuRetained> pass,
                 std::shared_ptr<Scratch> scratch)
      : BackwardJob(std::move(demand), std::move(kind)), pass_(std::move(pass)), scratch_(std::move(scratch)) {}

  std::span<const char* const> stages() const override { return kSphereBackwardStages; }
  bool runs_anywhere() const override { return pass_->kind->render->is_small(); }
  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* job : batch) static_cast<SphereBackward*>(job)->differentiate();
  }

 private:
  void differentiate() {
    const int views = static_cast<int>(pass_->cameras.size());
    const std::vector<Output>& gradients = kind_->gradients;
    for (int view = 0; view < views; ++view) {
      check_stop();
      differentiate_view(view);
      // Sums in the order of the views, as for other states.
      for (std::size_t i = 0; view > 0 && i < gradients.size(); ++i) {
        float* sum = place(i, false);
        const float* part = place(i, true);
        for (std::size_t j = 0; j < gradients[i].values; ++j) sum[j] += part[j];
      }
    }
    const Clock::time_point done = Clock::now();
    for (std::size_t i = 0; i < gradients.size(); ++i) send(gradients[i], place(i, false));
    download = 1e3 * seconds_of(Clock::now() - done);
  }

  void differentiate_view(int view) {
    const auto& render = static_cast<const SphereRender&>(*pass_->kind->render);
    spheres::Gradients gradients{};
    for (std::size_t i = 0; i < kind_->gradients.size(); ++i) {
      point_gradient(gradients, kind_->gradients[i].name, place(i, view > 0));
    }
    gradients.touched = scratch_->touched.ensure<std::int32_t>(render.scene.count);
    spheres::Workspace& workspace = scratch_->spheres;
    const DropLists after{workspace};
    spheres::cpu_engine(current_isa())
        .backward(render.camera(view, pass_->cameras[view]), pass_->kind->backward, render.scene, upstream_of(view),
                  gradients, pass_->prepared[view], workspace);
    for (std::size_t i = 0; i < std::size(kSphereBackwardStages); ++i) times[i] += workspace.milliseconds[i];
  }

  spheres::Upstream upstream_of(int view) const {
    spheres::Upstream upstream{};
    const std::size_t views = pass_->cameras.size();
    const std::vector<KeptImage>& images = pass_->kind->images;
    for (std::size_t i = 0; i < images.size(); ++i) {
      point_image(upstream, images[i].name, pass_->image(i) + view * (images[i].values / views));
    }
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      point_incoming(upstream, kind_->incoming[i].name, incoming_[i].data() + view * (incoming_[i].size() / views));
    }
    return upstream;
  }

  // The memory of a gradient, or of the part that a later view adds to it.
  float* place(std::size_t index, bool is_part) const {
    const std::size_t count = kind_->gradients.size();
    return static_cast<float*>(scratch_->ensure(index + (is_part ? count : 0), kind_->gradients[index].values));
  }

  const std::shared_ptr<CpuRetained> pass_;
  const std::shared_ptr<Scratch> scratch_;
};

class CpuPasses final : public PassEngine {
 public:
  std::shared_ptr<RetainedPass> pass(std::shared_ptr<const RetainedRender> kind,
                                     const std::vector<CameraPose>& cameras) const override {
    return std::make_shared<CpuRetained>(std::move(kind), cameras);
  }
  std::size_t staging_bytes(const RetainedRender&) const override { return 0; }
  std::size_t staging_bytes(const BackwardKind&) const override { return 0; }
  std::shared_ptr<PayloadJob> render(Demand demand, std::shared_ptr<RetainedPass> pass) const override {
    auto retained = std::static_pointer_cast<CpuRetained>(std::move(pass));
    if (dynamic_cast<const SphereRender*>(retained->kind->render.get()) != nullptr) {
      return std::make_shared<SphereRetain>(std::move(demand), std::move(retained), scratch_);
    }
    return std::make_shared<GaussianRetain>(std::move(demand), std::move(retained), scratch_);
  }
  std::shared_ptr<BackwardJob> backward(Demand demand, std::shared_ptr<const BackwardKind> kind,
                                        std::shared_ptr<RetainedPass> pass) const override {
    auto retained = std::static_pointer_cast<CpuRetained>(std::move(pass));
    if (kind->has_spheres) {
      return std::make_shared<SphereBackward>(std::move(demand), std::move(kind), std::move(retained), scratch_);
    }
    return std::make_shared<CpuBackward>(std::move(demand), std::move(kind), std::move(retained), scratch_);
  }

 private:
  const std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
};

}  // namespace

std::shared_ptr<PassEngine> make_cpu_passes() { return std::make_shared<CpuPasses>(); }

}  // namespace lumigrad::serving
