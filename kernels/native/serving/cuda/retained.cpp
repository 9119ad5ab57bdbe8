#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>

#include "gaussians/cpu/engine.h"
#include "gaussians/cuda/ids.h"
#include "serving/cuda/passes.h"

namespace lumigrad::serving {
namespace {

// The first stages of gaussians::kStageNames.
constexpr const char* kForwardStages[] = {"kernel.project", "kernel.sort", "kernel.bin", "kernel.blend"};
constexpr std::size_t kPrefix = std::string_view("kernel.").size();

struct Device {
  const Streams streams;
  gaussians::CudaWorkspace workspace{};
};

// Levels of colours are written by the kernels; all other conversions are made on the host.
bool is_written_as_levels(const Output& output) {
  return output.encoding == Encoding::levels && output.name == "color";
}

std::size_t device_bytes_of(const Output& output) {
  return output.values * (is_written_as_levels(output) ? sizeof(std::uint8_t) : sizeof(float));
}

// Adds the times of a timer to those of a job.
void add_times(const DeviceTimer& timer, PayloadJob& job) {
  const std::span<const char* const> names = job.stages();
  for (const auto& [stage, milliseconds] : timer.milliseconds()) {
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (stage == names[i] + kPrefix) job.times[i] += milliseconds;
    }
  }
}

class CudaRetain final : public PayloadJob {
 public:
  CudaRetain(Demand demand, std::shared_ptr<CudaRetained> pass, std::shared_ptr<Device> device)
      : PayloadJob(std::move(demand)), pass_(std::move(pass)), device_(std::move(device)) {}

  bool accept(std::string_view) override { return true; }
  std::span<const char* const> stages() const override { return kForwardStages; }

  void run(std::span<NativeJob* const> batch) override {
    try {
      for (NativeJob* job : batch) static_cast<CudaRetain*>(job)->draw();
    } catch (...) {
      // Before its memory is given back.
      device_->streams.finish();
      throw;
    }
  }

  void complete() override {
    const Clock::time_point begun = Clock::now();
    const DeviceGuard guard(device_->streams.device);
    download_->wait();
    const char* from = staging;
    for (const Output& output : pass_->kind->render->outputs) {
      if (is_written_as_levels(output)) {
        std::copy(from, from + output.bytes(), payload + output.offset);
      } else {
        encode(output, from, payload + output.offset);
      }
      from += device_bytes_of(output);
    }
    for (const DeviceTimer& timer : timers_) add_times(timer, *this);
    download_.reset();
    download = 1e3 * seconds_of(Clock::now() - begun);
  }

 private:
  void draw() {
    const GaussianRender& render = *pass_->kind->render;
    const Streams& streams = device_->streams;
    const gaussians::Scene scene = pass_->scene();
    gaussians::Outputs kernels{};
    std::int32_t* ids = nullptr;
    point_all(render, kernels, ids);
    const int count = static_cast<int>(render.views.size());
    timers_.push_back(gaussians::cuda_forward(render.views.data(), count, render.settings, scene, kernels,
                                              pass_->kept.pass, device_->workspace, streams.kernels));
    if (ids != nullptr) {
      timers_.push_back(gaussians::cuda_ids(render.views.data(), count, render.settings, scene, ids, pass_->kept.pass,
                                            device_->workspace, streams.kernels));
    }
    download_->start(streams, staging);
  }

  void point_all(const GaussianRender& render, gaussians::Outputs& kernels, std::int32_t*& ids) {
    const Streams& streams = device_->streams;
    const std::vector<KeptImage>& images = pass_->kind->images;
    for (const KeptImage& image : images) {
      pass_->images.emplace_back(image.values, streams.kernels);
      point(kernels, image.name, pass_->images.back().data());
    }
    download_.emplace();
    for (const Output& output : render.outputs) {
      if (is_written_as_levels(output)) {
        kernels.color_levels = download_->make<std::uint8_t>(output.values, streams);
        continue;
      }
      std::size_t kept = 0;
      while (kept < images.size() && images[kept].name != output.name) ++kept;
      if (kept < images.size()) {
        download_->add(pass_->images[kept].data(), pass_->images[kept].bytes());
        continue;
      }
      void* to = download_->make<float>(output.values, streams);
      if (output.name == "ids") {
        ids = static_cast<std::int32_t*>(to);
      } else {
        point(kernels, output.name, to);
      }
    }
  }

  const std::shared_ptr<CudaRetained> pass_;
  const std::shared_ptr<Device> device_;
  std::optional<Download> download_;
  std::vector<DeviceTimer> timers_;
};

class CudaBackward final : public BackwardJob {
 public:
  CudaBackward(Demand demand, std::shared_ptr<const BackwardKind> kind, std::shared_ptr<CudaRetained> pass,
               std::shared_ptr<Device> device)
      : BackwardJob(std::move(demand), std::move(kind)), pass_(std::move(pass)), device_(std::move(device)) {}

  void run(std::span<NativeJob* const> batch) override {
    try {
      for (NativeJob* job : batch) static_cast<CudaBackward*>(job)->differentiate();
    } catch (...) {
      // Before its memory is given back.
      device_->streams.finish();
      throw;
    }
  }

  void complete() override {
    const Clock::time_point begun = Clock::now();
    const DeviceGuard guard(device_->streams.device);
    download_->wait();
    const char* from = staging;
    for (const Output& gradient : kind_->gradients) {
      send(gradient, reinterpret_cast<const float*>(from));
      from += gradient.values * sizeof(float);
    }
    add_times(*timer_, *this);
    download_.reset();
    download = 1e3 * seconds_of(Clock::now() - begun);
  }

 private:
  void differentiate() {
    const GaussianRender& render = *pass_->kind->render;
    const Streams& streams = device_->streams;
    const gaussians::Scene scene = pass_->scene();
    std::vector<DeviceBuffer<float>> incoming;
    gaussians::Upstream upstream{};
    for (std::size_t i = 0; i < pass_->images.size(); ++i) {
      point_image(upstream, pass_->kind->images[i].name, pass_->images[i].data());
    }
    for (std::size_t i = 0; i < incoming_.size(); ++i) {
      incoming.emplace_back(incoming_[i].size(), streams.kernels);
      device_->workspace.staging.copy(incoming.back().data(), incoming_[i].data(), incoming.back().bytes(),
                                      streams.kernels);
      point_incoming(upstream, kind_->incoming[i].name, incoming.back().data());
    }
    download_.emplace();
    gaussians::Gradients gradients{};
    for (const Output& gradient : kind_->gradients) {
      point_gradient(gradients, gradient.name, download_->make<float>(gradient.values, streams));
    }
    DeviceBuffer<std::int32_t> touched(scene.count, streams.kernels);
    gradients.touched = touched.data();
    timer_ =
        gaussians::cuda_backward(render.views.data(), static_cast<int>(render.views.size()), render.settings, scene,
                                 upstream, gradients, pass_->kept.pass, device_->workspace, streams.kernels);
    download_->start(streams, staging);
  }

  const std::shared_ptr<CudaRetained> pass_;
  const std::shared_ptr<Device> device_;
  std::optional<Download> download_;
  std::optional<DeviceTimer> timer_;
};

class CudaPasses final : public PassEngine {
 public:
  explicit CudaPasses(const Streams& streams) : device_(std::make_shared<Device>(streams)) {}

  std::shared_ptr<RetainedPass> pass(std::shared_ptr<const RetainedRender> kind,
                                     const std::vector<CameraPose>& cameras) const override {
    return std::make_shared<CudaRetained>(std::move(kind), cameras);
  }
  std::size_t staging_bytes(const RetainedRender& kind) const override {
    std::size_t bytes = 0;
    for (const Output& output : kind.render->outputs) bytes += device_bytes_of(output);
    return bytes;
  }
  std::size_t staging_bytes(const BackwardKind& kind) const override {
    std::size_t bytes = 0;
    for (const Output& gradient : kind.gradients) bytes += gradient.values * sizeof(float);
    return bytes;
  }
  std::shared_ptr<PayloadJob> render(Demand demand, std::shared_ptr<RetainedPass> pass) const override {
    return std::make_shared<CudaRetain>(std::move(demand), std::static_pointer_cast<CudaRetained>(std::move(pass)),
                                        device_);
  }
  std::shared_ptr<BackwardJob> backward(Demand demand, std::shared_ptr<const BackwardKind> kind,
                                        std::shared_ptr<RetainedPass> pass) const override {
    return std::make_shared<CudaBackward>(std::move(demand), std::move(kind),
                                          std::static_pointer_cast<CudaRetained>(std::move(pass)), device_);
  }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace

std::shared_ptr<PassEngine> make_cuda_passes(const Streams& streams) { return std::make_shared<CudaPasses>(streams); }

}  // namespace lumigrad::serving
