#include <utility>

#include "meshes/cuda/engine.h"
#include "serving/cuda/device_job.h"
#include "serving/cuda/passes.h"

namespace lumigrad::serving {
namespace {

constexpr const char* kStages[] = {"kernel.query"};

struct Device {
  const Streams streams;
  meshes::CudaWorkspace workspace{};
};

class CudaQuery final : public DeviceJob<DistanceJob, Device> {
 public:
  using DeviceJob::DeviceJob;

  std::span<const char* const> stages() const override { return kStages; }

 protected:
  void queue(Download& download, std::vector<DeviceTimer>& timers) override {
    const Streams& streams = device_->streams;
    const DistanceQuery& query = *query_;
    const cudaStream_t kernels = streams.kernels;
    DeviceBuffer<float> spheres(spheres_.size(), kernels);
    DeviceBuffer<std::int32_t> environments(environments_.size(), kernels);
    device_->workspace.staging.copy(spheres.data(), spheres_.data(), spheres.bytes(), kernels);
    if (!environments_.empty()) {
      device_->workspace.staging.copy(environments.data(), environments_.data(), environments.bytes(), kernels);
    }
    meshes::Outputs outputs{};
    for (const DistanceOutput& output : query.outputs) {
      point(outputs, output, download.make<char>(query.kernel_bytes(output), streams));
    }
    const std::int32_t* where = environments_.empty() ? nullptr : environments.data();
    timers.push_back(meshes::cuda_evaluate(query.world,
                                           {spheres.data(), query.batches, query.horizon, query.count, where},
                                           query.settings, outputs, device_->workspace, kernels));
  }

  void send(char* results) override {
    for (const DistanceOutput& output : query_->outputs) {
      query_->send(output, results, payload);
      results += query_->kernel_bytes(output);
    }
  }
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
    return std::make_shared<CudaQuery>(device_, std::move(demand), std::move(query));
  }

 private:
  const std::shared_ptr<Device> device_;
};

}  // namespace

std::shared_ptr<DistanceEngine> make_cuda_distances(const Streams& streams) {
  return std::make_shared<CudaDistances>(streams);
}

}  // namespace lumigrad::serving
