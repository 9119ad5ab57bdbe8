#include <string_view>
#include <utility>

#include "gaussians/cuda/lists/ids.h"
#include "serving/cuda/device_job.h"
#include "serving/cuda/passes.h"
#include "serving/cuda/render.h"

namespace lumigrad::serving {
namespace {

struct Device {
  const Streams streams;
  gaussians::CudaWorkspace workspace{};
};

struct RetainJob : PayloadJob {
  RetainJob(Demand demand, std::shared_ptr<CudaRetained> pass)
      : PayloadJob(std::move(demand)), pass_(std::move(pass)) {}

  bool accept(std::string_view) override { return true; }
  std::span<const char* const> stages() const override { return pass_->kind->render->stages(); }

 protected:
  const std::shared_ptr<CudaRetained> pass_;
};

class CudaRetain final : public DeviceJob<RetainJob, Device> {
 public:
  using DeviceJob::DeviceJob;

 protected:
  void queue(Download& download, std::vector<DeviceTimer>& timers) override {
    const GaussianRender& render = pass_->kind->gaussians();
    const cudaStream_t kernels = device_->streams.kernels;
    const gaussians::Scene scene = pass_->scene();
    GaussianTargets targets;
    point_all(render, targets, download);
    const int count = static_cast<int>(render.views.size());
    timers.push_back(gaussians::cuda_forward(render.views.data(), count, render.settings, scene, targets.images,
                                             pass_->kept.pass, device_->workspace, kernels));
    if (targets.ids == nullptr) return;
    timers.push_back(gaussians::cuda_ids(render.views.data(), count, render.settings, scene, targets.ids,
                                         pass_->kept.pass, device_->workspace, kernels));
  }
  void send(char* results) override { encode_all(*pass_->kind->render, results, payload); }

 private:
  void point_all(const GaussianRender& render, GaussianTargets& targets, Download& download) {
    const Streams& streams = device_->streams;
    const std::vector<KeptImage>& images = pass_->kind->images;
    for (const KeptImage& image : images) {
      pass_->images.emplace_back(image.values, streams.kernels);
      point(targets.images, image.name, pass_->images.back().data());
    }
    for (const Output& output : render.outputs) {
      std::size_t kept = 0;
      while (kept < images.size() && images[kept].name != output.name) ++kept;
      if (kept < images.size() && !output.are_color_levels()) {
        download.add(pass_->images[kept].data(), pass_->images[kept].bytes());
      } else {
        point(targets, output, download.make<char>(device_bytes_of(render, output), streams));
      }
    }
  }
};

class CudaBackward final : public DeviceJob<BackwardJob, Device> {
 public:
  CudaBackward(std::shared_ptr<Device> device, Demand demand, std::shared_ptr<const BackwardKind> kind,
               std::shared_ptr<CudaRetained> pass)
      : DeviceJob(std::move(device), std::move(demand), std::move(kind)), pass_(std::move(pass)) {}

 protected:
  void queue(Download& download, std::vector<DeviceTimer>& timers) override {
    const GaussianRender& render = pass_->kind->gaussians();
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
    gaussians::Gradients gradients{};
    for (const auto& [name, bytes] : kind_->results()) {
      point_gradient(gradients, name, download.make<char>(bytes, streams));
    }
    DeviceBuffer<std::int32_t> touched(scene.count, streams.kernels);
    gradients.touched = touched.data();
    timers.push_back(gaussians::cuda_backward(render.views.data(), static_cast<int>(render.views.size()),
                                              render.settings, scene, upstream, gradients, pass_->kept.pass,
                                              device_->workspace, streams.kernels));
  }

  void send(char* results) override {
    std::vector<const void*> places;
    for (const auto& [name, bytes] : kind_->results()) {
      places.push_back(results);
      results += bytes;
    }
    send_all(places, pass_->cameras);
  }

 private:
  const std::shared_ptr<CudaRetained> pass_;
};

class CudaPasses final : public PassEngine {
 public:
  explicit CudaPasses(const Streams& streams) : device_(std::make_shared<Device>(streams)) {}

  std::shared_ptr<RetainedPass> pass(std::shared_ptr<const RetainedRender> kind,
                                     const std::vector<CameraPose>& cameras) const override {
    return std::make_shared<CudaRetained>(std::move(kind), cameras);
  }
  std::size_t staging_bytes(const RetainedRender& kind) const override { return device_bytes_of(*kind.render); }
  std::size_t staging_bytes(const BackwardKind& kind) const override {
    std::size_t bytes = 0;
    for (const auto& result : kind.results()) bytes += result.second;
    return bytes;
  }
  std::shared_ptr<PayloadJob> render(Demand demand, std::shared_ptr<RetainedPass> pass) const override {
    return std::make_shared<CudaRetain>(device_, std::move(demand),
                                        std::static_pointer_cast<CudaRetained>(std::move(pass)));
  }
  std::shared_ptr<BackwardJob> backward(Demand demand, std::shared_ptr<const BackwardKind> kind,
                                        std::shared_ptr<RetainedPass> pass) const override {
    return std::make_shared<CudaBackward>(device_, std::move(demand), std::move(kind),
                                          std::static_pointer_cast<CudaRetained>(std::move(pass)));
  }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace

std::shared_ptr<PassEngine> make_cuda_passes(const Streams& streams) { return std::make_shared<CudaPasses>(streams); }

}  // namespace lumigrad::serving
