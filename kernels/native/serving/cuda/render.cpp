#include "serving/cuda/render.h"

#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/cuda/event.h"
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/timer.h"
#include "gaussians/cpu/engine.h"
#include "gaussians/cuda/engine.h"
#include "gaussians/cuda/ids.h"

namespace lumigrad::serving {
namespace {

// What the jobs of a device share.
struct Device {
  const int index;
  const cudaStream_t kernels, copies;
  gaussians::CudaWorkspace workspace{};

  void finish() const noexcept {
    cudaStreamSynchronize(kernels);
    cudaStreamSynchronize(copies);
  }
};

// A batch that the device has yet to finish, with the memory that it uses.
struct Queued {
  std::vector<DeviceBuffer<char>> outputs;
  gaussians::CudaPass pass;
  std::vector<DeviceTimer> timers;
  std::unique_ptr<DeviceEvent> copied;
};

// Levels of colours are written by the kernels; all other conversions are made on the host.
bool is_written_as_levels(const Output& output) {
  return output.encoding == Encoding::levels && output.name == "color";
}

std::size_t device_bytes_of(const Output& output) {
  return output.values * (is_written_as_levels(output) ? sizeof(std::uint8_t) : sizeof(float));
}

int stage_named(std::string_view name) {
  int index = 0;
  while (index < kMaxStages - 1 && name != gaussians::kStageNames[index]) ++index;
  return index;
}

class CudaJob final : public RenderJob {
 public:
  CudaJob(Demand demand, Request request, std::shared_ptr<Device> device)
      : RenderJob(std::move(demand), std::move(request)), device_(std::move(device)) {}

  void run(std::span<NativeJob* const> batch) override {
    auto queued = std::make_shared<Queued>();
    try {
      draw(batch.size(), poses_of(batch), *queued);
      copy(batch, *queued);
    } catch (...) {
      // Before its memory is given back.
      device_->finish();
      throw;
    }
    for (NativeJob* each : batch) {
      auto* job = static_cast<CudaJob*>(each);
      job->queued_ = queued;
      job->share_ = 1.0 / static_cast<double>(batch.size());
    }
    batch_views = static_cast<int>(batch.size() * render->views.size());
  }

  void complete() override {
    const Clock::time_point begun = Clock::now();
    const DeviceGuard guard(device_->index);
    queued_->copied->wait();
    const char* from = staging;
    for (const Output& output : render->outputs) {
      if (is_written_as_levels(output)) {
        std::memcpy(payload + output.offset, from, output.bytes());
      } else {
        encode(output, from, payload + output.offset);
      }
      from += device_bytes_of(output);
    }
    for (const DeviceTimer& timer : queued_->timers) {
      for (const auto& [stage, milliseconds] : timer.milliseconds()) {
        times.stages[stage_named(stage)] += share_ * milliseconds;
      }
    }
    queued_.reset();
    times.download = 1e3 * seconds_of(Clock::now() - begun);
  }

 private:
  static std::vector<gaussians::Pose> poses_of(std::span<NativeJob* const> batch) {
    std::vector<gaussians::Pose> poses;
    for (const NativeJob* job : batch) {
      for (const CameraPose& pose : static_cast<const CudaJob*>(job)->poses) poses.push_back(pose_of(pose));
    }
    return poses;
  }

  // The views of all jobs in one launch: they differ in their poses only.
  void draw(std::size_t jobs, const std::vector<gaussians::Pose>& all_poses, Queued& queued) const {
    std::vector<gaussians::View> views;
    for (std::size_t i = 0; i < jobs; ++i) views.insert(views.end(), render->views.begin(), render->views.end());
    const gaussians::Scene scene = render->scene_at(all_poses);
    gaussians::Outputs outputs{};
    std::int32_t* ids = nullptr;
    for (const Output& output : render->outputs) {
      queued.outputs.emplace_back(jobs * device_bytes_of(output), device_->kernels);
      void* to = queued.outputs.back().data();
      if (output.name == "ids") {
        ids = static_cast<std::int32_t*>(to);
      } else if (is_written_as_levels(output)) {
        outputs.color_levels = static_cast<std::uint8_t*>(to);
      } else {
        point(outputs, output.name, to);
      }
    }
    const int count = static_cast<int>(views.size());
    queued.timers.push_back(gaussians::cuda_forward(views.data(), count, render->settings, scene, outputs, queued.pass,
                                                    device_->workspace, device_->kernels));
    if (ids == nullptr) return;
    queued.timers.push_back(gaussians::cuda_ids(views.data(), count, render->settings, scene, ids, queued.pass,
                                                device_->workspace, device_->kernels));
  }

  // Copies each job's part of the outputs to its staging memory, beside the kernels of the next batch.
  void copy(std::span<NativeJob* const> batch, Queued& queued) const {
    DeviceEvent(device_->kernels).delay(device_->copies);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      char* to = static_cast<CudaJob*>(batch[i])->staging;
      for (std::size_t k = 0; k < render->outputs.size(); ++k) {
        const std::size_t bytes = device_bytes_of(render->outputs[k]);
        check(cudaMemcpyAsync(to, queued.outputs[k].data() + i * bytes, bytes, cudaMemcpyDeviceToHost, device_->copies),
              "copying to the host");
        to += bytes;
      }
    }
    queued.copied = std::make_unique<DeviceEvent>(device_->copies);
  }

  const std::shared_ptr<Device> device_;
  std::shared_ptr<Queued> queued_;
  double share_ = 1.0;
};

class CudaRenderer final : public Renderer {
 public:
  CudaRenderer(int device, cudaStream_t kernels, cudaStream_t copies)
      : device_(std::make_shared<Device>(device, kernels, copies)) {}

  std::size_t staging_bytes(const GaussianRender& render) const override {
    std::size_t bytes = 0;
    for (const Output& output : render.outputs) bytes += device_bytes_of(output);
    return bytes;
  }
  std::shared_ptr<RenderJob> job(Demand demand, Request request) const override {
    return std::make_shared<CudaJob>(std::move(demand), std::move(request), device_);
  }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace

std::shared_ptr<Renderer> make_cuda_renderer(int device, cudaStream_t kernels, cudaStream_t copies) {
  return std::make_shared<CudaRenderer>(device, kernels, copies);
}

}  // namespace lumigrad::serving
