#include "serving/cuda/render.h"

#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "gaussians/cuda/engine.h"
#include "gaussians/cuda/lists/ids.h"
#include "spheres/cuda/engine.h"

namespace lumigrad::serving {
namespace {

// State that the jobs of a device share.
struct Device {
  const Streams streams;
  gaussians::CudaWorkspace gaussians{};
  spheres::CudaWorkspace spheres{};
};

// A batch that the device has yet to finish, with the memory that it uses.
struct Queued {
  std::vector<DeviceBuffer<char>> outputs;
  gaussians::CudaPass gaussians;
  spheres::CudaPass spheres;
  std::vector<DeviceTimer> timers;
  std::unique_ptr<DeviceEvent> copied;
};

// Returns an output with the encoding that the kernels write.
Output as_written(const Render& render, const Output& output) {
  Output written = output;
  if (!output.are_color_levels() || !render.has_device_levels()) written.encoding = Encoding::plain;
  return written;
}

bool is_sent_as_written(const Render& render, const Output& output) {
  return as_written(render, output).encoding == output.encoding;
}

class CudaJob : public RenderJob {
 public:
  CudaJob(Demand demand, Request request, std::shared_ptr<Device> device)
      : RenderJob(std::move(demand), std::move(request)), device_(std::move(device)) {}

  void run(std::span<NativeJob* const> batch) override {
    auto queued = std::make_shared<Queued>();
    std::vector<CameraPose> poses;
    for (const NativeJob* job : batch) {
      const std::vector<CameraPose>& own = static_cast<const CudaJob*>(job)->poses;
      poses.insert(poses.end(), own.begin(), own.end());
    }
    try {
      for (const Output& output : render->outputs) {
        queued->outputs.emplace_back(batch.size() * device_bytes_of(*render, output), device_->streams.kernels);
      }
      draw(poses, *queued);
      copy(batch, *queued);
    } catch (...) {
      // The device must finish before the memory is returned.
      device_->streams.finish();
      throw;
    }
    for (NativeJob* each : batch) {
      auto* job = static_cast<CudaJob*>(each);
      job->queued_ = queued;
      job->share_ = 1.0 / static_cast<double>(batch.size());
    }
    batch_views = static_cast<int>(poses.size());
  }

  void complete() override {
    const Clock::time_point begun = Clock::now();
    const DeviceGuard guard(device_->streams.device);
    queued_->copied->wait();
    if (staging != nullptr) encode_all(*render, staging, payload, is_payload_pinned);
    for (const DeviceTimer& timer : queued_->timers) {
      add_times(timer, render->stages(), times.stages.data(), share_);
    }
    queued_.reset();
    times.download = 1e3 * seconds_of(Clock::now() - begun);
  }

 protected:
  // Queues the views of all jobs of a batch in one launch: the jobs differ only in their poses.
  virtual void draw(const std::vector<CameraPose>& poses, Queued& queued) const = 0;

  template <class Kernels>
  Kernels targets_in(Queued& queued) const {
    Kernels kernels{};
    for (std::size_t i = 0; i < render->outputs.size(); ++i) {
      point(kernels, as_written(*render, render->outputs[i]), queued.outputs[i].data());
    }
    return kernels;
  }

  const std::shared_ptr<Device> device_;

 private:
  // Copies each job's part of the outputs to its staging memory or its payload, while the kernels of the next batch
  // run.
  void copy(std::span<NativeJob* const> batch, Queued& queued) const {
    const Streams& streams = device_->streams;
    DeviceEvent(streams.kernels).delay(streams.copies);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Request& request = *static_cast<CudaJob*>(batch[i]);
      char* staged = request.staging;
      for (std::size_t k = 0; k < render->outputs.size(); ++k) {
        const Output& output = render->outputs[k];
        const std::size_t bytes = device_bytes_of(*render, output);
        const bool is_direct = request.is_payload_pinned && is_sent_as_written(*render, output);
        char* to = is_direct ? request.payload + output.offset : staged;
        check(cudaMemcpyAsync(to, queued.outputs[k].data() + i * bytes, bytes, cudaMemcpyDeviceToHost, streams.copies),
              "copying to the host");
        if (!is_direct) staged += bytes;
      }
    }
    queued.copied = std::make_unique<DeviceEvent>(streams.copies);
  }

  std::shared_ptr<Queued> queued_;
  double share_ = 1.0;
};

class GaussianJob final : public CudaJob {
 public:
  using CudaJob::CudaJob;

 private:
  void draw(const std::vector<CameraPose>& poses, Queued& queued) const override {
    const auto& render = static_cast<const GaussianRender&>(*this->render);
    std::vector<gaussians::Pose> kernel_poses;
    for (const CameraPose& pose : poses) kernel_poses.push_back(pose_of(pose));
    std::vector<gaussians::View> views;
    while (views.size() < poses.size()) views.insert(views.end(), render.views.begin(), render.views.end());
    const gaussians::Scene scene = render.scene_at(kernel_poses);
    const auto targets = targets_in<GaussianTargets>(queued);
    const int count = static_cast<int>(views.size());
    const cudaStream_t kernels = device_->streams.kernels;
    queued.gaussians.differentiable = false;
    queued.timers.push_back(gaussians::cuda_forward(views.data(), count, render.settings, scene, targets.images,
                                                    queued.gaussians, device_->gaussians, kernels));
    if (targets.ids == nullptr) return;
    queued.timers.push_back(gaussians::cuda_ids(views.data(), count, render.settings, scene, targets.ids,
                                                queued.gaussians, device_->gaussians, kernels));
  }
};

class SphereJob final : public CudaJob {
 public:
  using CudaJob::CudaJob;

 private:
  void draw(const std::vector<CameraPose>& poses, Queued& queued) const override {
    const auto& render = static_cast<const SphereRender&>(*this->render);
    std::vector<spheres::Camera> cameras;
    for (std::size_t i = 0; i < poses.size(); ++i) {
      cameras.push_back(render.camera(static_cast<int>(i % render.lenses.size()), poses[i]));
    }
    queued.timers.push_back(spheres::cuda_forward(cameras, render.settings, render.scene,
                                                  targets_in<spheres::Outputs>(queued), queued.spheres,
                                                  device_->spheres, device_->streams.kernels));
  }
};

class CudaRenderer final : public Renderer {
 public:
  explicit CudaRenderer(const Streams& streams) : device_(std::make_shared<Device>(streams)) {}

  std::size_t staging_bytes(const Render& render, bool is_payload_pinned) const override {
    std::size_t bytes = 0;
    for (const Output& output : render.outputs) {
      if (!is_payload_pinned || !is_sent_as_written(render, output)) bytes += device_bytes_of(render, output);
    }
    return bytes;
  }
  std::shared_ptr<RenderJob> job(Demand demand, Request request) const override {
    if (dynamic_cast<const SphereRender*>(request.render.get()) != nullptr) {
      return std::make_shared<SphereJob>(std::move(demand), std::move(request), device_);
    }
    return std::make_shared<GaussianJob>(std::move(demand), std::move(request), device_);
  }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace

std::size_t device_bytes_of(const Render& render, const Output& output) { return as_written(render, output).bytes(); }

std::size_t device_bytes_of(const Render& render) {
  std::size_t bytes = 0;
  for (const Output& output : render.outputs) bytes += device_bytes_of(render, output);
  return bytes;
}

void encode_all(const Render& render, const char* from, char* payload, bool has_written) {
  for (const Output& output : render.outputs) {
    const Output written = as_written(render, output);
    if (is_sent_as_written(render, output)) {
      if (has_written) continue;
      std::memcpy(payload + output.offset, from, output.bytes());
    } else {
      encode(output, from, payload + output.offset);
    }
    from += written.bytes();
  }
}

std::shared_ptr<Renderer> make_cuda_renderer(const Streams& streams) { return std::make_shared<CudaRenderer>(streams); }

}  // namespace lumigrad::serving
