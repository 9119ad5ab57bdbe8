// Renders of prepared requests on the CPU. The kernels write directly to the payload if an output needs no conversion.
#include "serving/cpu_render.h"

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/alone.h"
#include "common/isa.h"
#include "common/pool.h"
#include "common/threads.h"
#include "gaussians/cpu/lists/ids.h"
#include "spheres/cpu/engine.h"

namespace lumigrad::serving {
namespace {

struct Scratch {
  gaussians::Workspace gaussians;
  gaussians::Pass pass;
  spheres::Workspace spheres;
  // Buffers of outputs that need conversion, or whose place in the payload is not aligned.
  std::vector<std::unique_ptr<Buffer>> outputs;
};

void add_times(const double* milliseconds, double* times) {
  for (int i = 0; i < kRenderStages; ++i) times[i] += milliseconds[i];
}

bool is_aligned(const char* place) { return reinterpret_cast<std::uintptr_t>(place) % alignof(float) == 0; }

// Places to which the kernels write the outputs of one job.
class Targets {
 public:
  Targets(const Render& render, char* payload, Scratch& scratch) : render_(render), payload_(payload) {
    while (scratch.outputs.size() < render.outputs.size()) scratch.outputs.push_back(std::make_unique<Buffer>());
    for (std::size_t i = 0; i < render.outputs.size(); ++i) {
      const Output& output = render.outputs[i];
      places_.push_back(is_direct(output) ? payload + output.offset
                                          : scratch.outputs[i]->ensure<char>(4 * output.values));
    }
  }

  // Converts the outputs that were not written directly to the payload.
  void finish() {
    for (std::size_t i = 0; i < render_.outputs.size(); ++i) {
      const Output& output = render_.outputs[i];
      if (!is_direct(output)) encode(output, places_[i], payload_ + output.offset);
    }
  }

  // Pointers to a view of each output, in memory for all views.
  template <class Kernels>
  Kernels of_view(int view) const {
    Kernels kernels{};
    for (std::size_t i = 0; i < places_.size(); ++i) {
      const Output& output = render_.outputs[i];
      const std::size_t first = view * (output.values / render_.views_count());
      point(kernels, output, places_[i] + first * (output.are_color_levels() ? 1 : 4));
    }
    return kernels;
  }

 private:
  bool is_direct(const Output& output) const {
    return output.are_color_levels() || (output.encoding == Encoding::plain && is_aligned(payload_ + output.offset));
  }

  const Render& render_;
  char* payload_;
  std::vector<char*> places_;
};

class CpuJob : public RenderJob {
 public:
  CpuJob(Demand demand, Request request, std::shared_ptr<Scratch> scratch)
      : RenderJob(std::move(demand), std::move(request)), scratch_(std::move(scratch)), is_small_(render->is_small()) {}

  bool runs_anywhere() const override { return is_small_; }

  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* job : batch) static_cast<CpuJob*>(job)->draw();
  }
  void complete() override {}

 protected:
  virtual void draw_views(const Targets& targets) = 0;

  const std::shared_ptr<Scratch> scratch_;

 private:
  void draw() {
    std::optional<Alone> alone;
    if (is_small_) alone.emplace();
    Targets targets(*render, payload, *scratch_);
    draw_views(targets);
    const Clock::time_point drawn = Clock::now();
    targets.finish();
    times.download = 1e3 * seconds_of(Clock::now() - drawn);
    batch_views = static_cast<int>(render->views_count());
  }

  const bool is_small_;
};

class GaussianJob final : public CpuJob {
 public:
  using CpuJob::CpuJob;

 private:
  void draw_views(const Targets& targets) override {
    const auto& render = static_cast<const GaussianRender&>(*this->render);
    std::vector<gaussians::Pose> kernel_poses;
    for (const CameraPose& pose : poses) kernel_poses.push_back(pose_of(pose));
    const gaussians::Scene scene = render.scene_at(kernel_poses);
    const auto kernels = targets.of_view<GaussianTargets>(0);
    scratch_->pass.prepare(static_cast<int>(render.views.size()), false);
    for (int view = 0; view < static_cast<int>(render.views.size()); ++view) {
      draw_view(render, view, scene, kernels, scratch_->pass, scratch_->gaussians, times.stages.data());
    }
    scratch_->pass.drop_lists();
  }
};

class SphereJob final : public CpuJob {
 public:
  using CpuJob::CpuJob;

 private:
  void draw_views(const Targets& targets) override {
    const auto& render = static_cast<const SphereRender&>(*this->render);
    spheres::Workspace& workspace = scratch_->spheres;
    for (int view = 0; view < static_cast<int>(poses.size()); ++view) {
      check_stop();
      spheres::cpu_engine(current_isa())
          .forward(render.camera(view, poses[view]), render.settings, render.scene,
                   targets.of_view<spheres::Outputs>(view), workspace);
      workspace.drop_lists();
      add_times(workspace.milliseconds, times.stages.data());
    }
  }
};

class CpuRenderer final : public Renderer {
 public:
  std::size_t staging_bytes(const Render&, bool) const override { return 0; }
  std::shared_ptr<RenderJob> job(Demand demand, Request request) const override {
    if (dynamic_cast<const SphereRender*>(request.render.get()) != nullptr) {
      return std::make_shared<SphereJob>(std::move(demand), std::move(request), scratch_);
    }
    return std::make_shared<GaussianJob>(std::move(demand), std::move(request), scratch_);
  }

 private:
  const std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
};

}  // namespace

void draw_view(const GaussianRender& render, int view, const gaussians::Scene& scene, const GaussianTargets& targets,
               gaussians::Pass& pass, gaussians::Workspace& workspace, double* milliseconds) {
  check_stop();
  const Isa isa = current_isa();
  const gaussians::View* views = render.views.data();
  gaussians::cpu_engine(isa).forward_view(views, view, render.settings, scene, targets.images, pass, workspace);
  add_times(workspace.milliseconds, milliseconds);
  if (targets.ids == nullptr) return;
  gaussians::cpu_ids(isa)(views, view, render.settings, scene, targets.ids, pass, workspace);
  add_times(workspace.milliseconds, milliseconds);
}

std::shared_ptr<Renderer> make_cpu_renderer() { return std::make_shared<CpuRenderer>(); }

}  // namespace lumigrad::serving
