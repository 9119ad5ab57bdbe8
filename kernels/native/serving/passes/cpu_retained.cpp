// Retained renders and their differentiation on the CPU.
#include <iterator>
#include <optional>
#include <span>

#include "common/alone.h"
#include "common/isa.h"
#include "common/threads.h"
#include "serving/cpu_render.h"
#include "serving/passes/retained.h"

namespace lumigrad::serving {
namespace {

struct Scratch {
  gaussians::Workspace workspace;
  Buffer touched;
  std::vector<std::unique_ptr<Buffer>> values;

  // The first of so many values of four bytes.
  void* ensure(std::size_t index, std::size_t count) {
    while (values.size() <= index) values.push_back(std::make_unique<Buffer>());
    return values[index]->ensure<float>(count);
  }
};

class CpuRetain final : public PayloadJob {
 public:
  CpuRetain(Demand demand, std::shared_ptr<CpuRetained> pass, std::shared_ptr<Scratch> scratch)
      : PayloadJob(std::move(demand)), pass_(std::move(pass)), scratch_(std::move(scratch)) {}

  bool accept(std::string_view) override { return true; }
  std::span<const char* const> stages() const override { return pass_->kind->render->stages(); }
  bool runs_anywhere() const override { return pass_->kind->render->is_small(); }
  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* job : batch) static_cast<CpuRetain*>(job)->draw();
  }

 private:
  void draw() {
    const GaussianRender& render = *pass_->kind->render;
    std::optional<Alone> alone;
    if (render.is_small()) alone.emplace();
    GaussianTargets targets;
    const std::vector<const void*> places = point_all(render, targets);
    const gaussians::Scene scene = pass_->scene();
    const int views = static_cast<int>(render.views.size());
    pass_->pass.prepare(views, true);
    for (int view = 0; view < views; ++view) {
      draw_view(render, view, scene, targets, pass_->pass, scratch_->workspace, times.data());
    }
    const Clock::time_point drawn = Clock::now();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (places[i] != nullptr) encode(render.outputs[i], places[i], payload + render.outputs[i].offset);
    }
    download = 1e3 * seconds_of(Clock::now() - drawn);
  }

  // Sets the places to which the kernels write each output; null for levels, which go to the payload itself.
  std::vector<const void*> point_all(const GaussianRender& render, GaussianTargets& targets) {
    const std::vector<KeptImage>& images = pass_->kind->images;
    for (std::size_t i = 0; i < images.size(); ++i) point(targets.images, images[i].name, pass_->image(i));
    std::vector<const void*> places;
    for (const Output& output : render.outputs) {
      if (output.are_color_levels()) {
        point(targets, output, payload + output.offset);
        places.push_back(nullptr);
        continue;
      }
      std::size_t kept = 0;
      while (kept < images.size() && images[kept].name != output.name) ++kept;
      void* to = kept < images.size() ? pass_->image(kept) : scratch_->ensure(places.size(), output.values);
      places.push_back(to);
      if (kept == images.size()) point(targets, output, to);
    }
    return places;
  }

  const std::shared_ptr<CpuRetained> pass_;
  const std::shared_ptr<Scratch> scratch_;
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
  // Returns large rows however the pass ends.
  struct Rows {
    gaussians::Workspace& workspace;
    ~Rows() { workspace.drop_rows(); }
  };

  void differentiate() {
    const GaussianRender& render = *pass_->kind->render;
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
    engine.project_backward(render.views.data(), views, render.settings, scene, upstream, gradients, pass_->pass,
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

class CpuPasses final : public PassEngine {
 public:
  std::shared_ptr<RetainedPass> pass(std::shared_ptr<const RetainedRender> kind,
                                     const std::vector<CameraPose>& cameras) const override {
    return std::make_shared<CpuRetained>(std::move(kind), cameras);
  }
  std::size_t staging_bytes(const RetainedRender&) const override { return 0; }
  std::size_t staging_bytes(const BackwardKind&) const override { return 0; }
  std::shared_ptr<PayloadJob> render(Demand demand, std::shared_ptr<RetainedPass> pass) const override {
    return std::make_shared<CpuRetain>(std::move(demand), std::static_pointer_cast<CpuRetained>(std::move(pass)),
                                       scratch_);
  }
  std::shared_ptr<BackwardJob> backward(Demand demand, std::shared_ptr<const BackwardKind> kind,
                                        std::shared_ptr<RetainedPass> pass) const override {
    return std::make_shared<CpuBackward>(std::move(demand), std::move(kind),
                                         std::static_pointer_cast<CpuRetained>(std::move(pass)), scratch_);
  }

 private:
  const std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
};

}  // namespace

std::shared_ptr<PassEngine> make_cpu_passes() { return std::make_shared<CpuPasses>(); }

}  // namespace lumigrad::serving
