// Renders of prepared requests on the CPU: the kernels write to the payload itself where an output is sent as it is.
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/alone.h"
#include "common/isa.h"
#include "common/pool.h"
#include "common/threads.h"
#include "gaussians/cpu/engine.h"
#include "gaussians/cpu/ids.h"
#include "serving/render.h"

namespace lumigrad::serving {
namespace {

struct Scratch {
  gaussians::Workspace workspace;
  gaussians::Pass pass;
  // For outputs that are converted, or whose place in the payload is not aligned.
  std::vector<std::unique_ptr<Buffer>> outputs;
};

// Levels of colours are written by the kernels; all other conversions are made afterwards.
bool is_written_as_levels(const Output& output) {
  return output.encoding == Encoding::levels && output.name == "color";
}

bool is_aligned(const char* place) { return reinterpret_cast<std::uintptr_t>(place) % alignof(float) == 0; }

// Where the kernels write the outputs of one job.
class Targets {
 public:
  Targets(const GaussianRender& render, char* payload, Scratch& scratch)
      : render_(render), payload_(payload), scratch_(scratch) {
    while (scratch.outputs.size() < render.outputs.size()) scratch.outputs.push_back(std::make_unique<Buffer>());
    for (std::size_t i = 0; i < render.outputs.size(); ++i) {
      const Output& output = render.outputs[i];
      void* to = is_direct(output) ? payload + output.offset : scratch.outputs[i]->ensure<char>(4 * output.values);
      if (output.name == "ids") {
        ids = static_cast<std::int32_t*>(to);
      } else if (is_written_as_levels(output)) {
        kernels.color_levels = static_cast<std::uint8_t*>(to);
      } else {
        point(kernels, output.name, to);
      }
      places_.push_back(to);
    }
  }

  // Converts what was not written in its place.
  void finish() {
    for (std::size_t i = 0; i < render_.outputs.size(); ++i) {
      const Output& output = render_.outputs[i];
      if (!is_direct(output)) encode(output, places_[i], payload_ + output.offset);
    }
  }

  gaussians::Outputs kernels{};
  std::int32_t* ids = nullptr;

 private:
  bool is_direct(const Output& output) const {
    return is_written_as_levels(output) || (output.encoding == Encoding::plain && is_aligned(payload_ + output.offset));
  }

  const GaussianRender& render_;
  char* payload_;
  Scratch& scratch_;
  std::vector<void*> places_;
};

class CpuJob final : public RenderJob {
 public:
  CpuJob(Demand demand, Request request, std::shared_ptr<Scratch> scratch)
      : RenderJob(std::move(demand), std::move(request)), scratch_(std::move(scratch)), is_small_(render->is_small()) {}

  bool runs_anywhere() const override { return is_small_; }

  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* job : batch) static_cast<CpuJob*>(job)->draw();
  }
  void complete() override {}

 private:
  void draw() {
    std::optional<Alone> alone;
    if (is_small_) alone.emplace();
    std::vector<gaussians::Pose> kernel_poses;
    for (const CameraPose& pose : poses) kernel_poses.push_back(pose_of(pose));
    const gaussians::Scene scene = render->scene_at(kernel_poses);
    Targets targets(*render, payload, *scratch_);
    scratch_->pass.prepare(static_cast<int>(render->views.size()), false);
    for (int view = 0; view < static_cast<int>(render->views.size()); ++view) draw_view(view, scene, targets);
    scratch_->pass.drop_lists();
    const Clock::time_point drawn = Clock::now();
    targets.finish();
    times.download = 1e3 * seconds_of(Clock::now() - drawn);
    batch_views = static_cast<int>(render->views.size());
  }

  void draw_view(int view, const gaussians::Scene& scene, Targets& targets) {
    check_stop();
    const gaussians::View* views = render->views.data();
    const Isa isa = current_isa();
    gaussians::Workspace& workspace = scratch_->workspace;
    gaussians::cpu_engine(isa).forward_view(views, view, render->settings, scene, targets.kernels, scratch_->pass,
                                            workspace);
    add_times();
    if (targets.ids == nullptr) return;
    gaussians::cpu_ids(isa)(views, view, render->settings, scene, targets.ids, scratch_->pass, workspace);
    add_times();
  }

  void add_times() {
    for (int i = 0; i < kMaxStages; ++i) times.stages[i] += scratch_->workspace.milliseconds[i];
  }

  const std::shared_ptr<Scratch> scratch_;
  const bool is_small_;
};

class CpuRenderer final : public Renderer {
 public:
  std::size_t staging_bytes(const GaussianRender&) const override { return 0; }
  std::shared_ptr<RenderJob> job(Demand demand, Request request) const override {
    return std::make_shared<CpuJob>(std::move(demand), std::move(request), scratch_);
  }

 private:
  const std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
};

}  // namespace

std::shared_ptr<Renderer> make_cpu_renderer() { return std::make_shared<CpuRenderer>(); }

}  // namespace lumigrad::serving
