#include <optional>
#include <utility>

#include "meshes/cuda/engine.h"
#include "serving/cuda/passes.h"

namespace lumigrad::serving {
namespace {

constexpr const char* kStages[] = {"kernel.query"};

struct Device {
  const Streams streams;
  meshes::CudaWorkspace workspace{};
};

class CudaQuery final : public DistanceJob {
 public:
  CudaQuery(Demand demand, std::shared_ptr<const DistanceQuery> query, std::shared_ptr<Device> device)
      : DistanceJob(std::move(demand), std::move(query)), device_(std::move(device)) {}

  std::span<const char* const> stages() const override { return kStages; }

  void run(std::span<NativeJob* const> batch) override {
    try {
      for (NativeJob* job : batch) static_cast<CudaQuery*>(job)->evaluate();
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
    char* from = staging;
    for (const DistanceOutput& output : query_->outputs) {
      query_->send(output, from, payload);
      from += query_->kernel_bytes(output);
    }
    for (const auto& [stage, milliseconds] : timer_->milliseconds()) times[0] += milliseconds;
    download_.reset();
    download = 1e3 * seconds_of(Clock::now() - begun);
  }

 private:
  void evaluate() {
    const Streams& streams = device_->streams;
    const DistanceQuery& query = *query_;
    const cudaStream_t kernels = streams.kernels;
    DeviceBuffer<float> spheres(spheres_.size(), kernels);
    DeviceBuffer<std::int32_t> environments(environments_.size(), kernels);
    device_->workspace.staging.copy(spheres.data(), spheres_.data(), spheres.bytes(), kernels);
    if (!environments_.empty()) {
      device_->workspace.staging.copy(environments.data(), environments_.data(), environments.bytes(), kernels);
    }
    download_.emplace();
    meshes::Outputs outputs{};
    for (const DistanceOutput& output : query.outputs) {
      point(outputs, output, download_->make<char>(query.kernel_bytes(output), streams));
    }
    const std::int32_t* where = environments_.empty() ? nullptr : environments.data();
    timer_ = meshes::cuda_evaluate(query.world, {spheres.data(), query.batches, query.horizon, query.count, where},
                                   query.settings, outputs, device_->workspace, kernels);
    download_->start(streams, staging);
  }

  const std::shared_ptr<Device> device_;
  std::optional<Download> download_;
  std::optional<DeviceTimer> timer_;
};

class CudaDistances final : public DistanceEngine {
 public:
  explicit CudaDistances(const Streams& streams) : device_(std::make_shared<Device>(streams)) {}

  std::size_t staging_bytes(const DistanceQuery& query) const override {
    std::size_t bytes = 0;
    for (const DistanceOutput& output : query.outputs) bytes += query.kernel_bytes(output);
    return bytes;
  }
  std::shared_ptr<PayloadJob> job(Demand demand, std::shared_ptr<const DistanceQuery> query) const override {
    return std::make_shared<CudaQuery>(std::move(demand), std::move(query), device_);
  }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace

std::shared_ptr<DistanceEngine> make_cuda_distances(const Streams& streams) {
  return std::make_shared<CudaDistances>(streams);
}

}  // namespace lumigrad::serving
