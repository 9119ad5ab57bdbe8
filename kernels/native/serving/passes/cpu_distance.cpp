// Distance queries of prepared requests on the CPU.
#include <iterator>
#include <optional>

#include "common/alone.h"
#include "common/isa.h"
#include "common/pool.h"
#include "common/threads.h"
#include "meshes/cpu/engine.h"
#include "serving/passes/distance.h"

namespace lumigrad::serving {
namespace {

// Names in the order of meshes::kStageNames.
constexpr const char* kStages[] = {"kernel.sort", "kernel.query"};

// The most pairs of spheres and obstacles that one thread tests in less time than waking another thread takes, and the
// number that a pair counts as if spheres sweep.
constexpr std::size_t kMostAlone = 1 << 11, kSweep = 16;

bool is_small(const DistanceQuery& query) {
  const auto obstacles = static_cast<std::size_t>(query.world.begin[query.world.environments]);
  return query.rows() * (obstacles + 1) * (query.settings.sweep ? kSweep : 1) <= kMostAlone;
}

struct Scratch {
  meshes::Workspace workspace;
  std::vector<std::unique_ptr<Buffer>> outputs;
};

class CpuQuery final : public DistanceJob {
 public:
  CpuQuery(Demand demand, std::shared_ptr<const DistanceQuery> query, std::shared_ptr<Scratch> scratch)
      : DistanceJob(std::move(demand), std::move(query)), scratch_(std::move(scratch)), is_small_(is_small(*query_)) {}

  bool runs_anywhere() const override { return is_small_; }
  void run(std::span<NativeJob* const> batch) override {
    for (NativeJob* job : batch) static_cast<CpuQuery*>(job)->evaluate();
  }
  std::span<const char* const> stages() const override { return kStages; }

 private:
  void evaluate() {
    check_stop();
    std::optional<Alone> alone;
    if (is_small_) alone.emplace();
    const DistanceQuery& query = *query_;
    std::vector<char*> found;
    meshes::Outputs outputs{};
    while (scratch_->outputs.size() < query.outputs.size()) scratch_->outputs.push_back(std::make_unique<Buffer>());
    for (const DistanceOutput& output : query.outputs) {
      found.push_back(scratch_->outputs[found.size()]->ensure<char>(query.kernel_bytes(output)));
      point(outputs, output, found.back());
    }
    const std::int32_t* environments = environments_.empty() ? nullptr : environments_.data();
    meshes::cpu_engine(current_isa())
        .evaluate(query.world, {spheres_.data(), query.batches, query.horizon, query.count, environments},
                  query.settings, outputs, scratch_->workspace);
    for (std::size_t i = 0; i < std::size(kStages); ++i) times[i] = scratch_->workspace.milliseconds[i];
    const Clock::time_point evaluated = Clock::now();
    for (std::size_t i = 0; i < found.size(); ++i) query.send(query.outputs[i], found[i], payload);
    download = 1e3 * seconds_of(Clock::now() - evaluated);
  }

  const std::shared_ptr<Scratch> scratch_;
  const bool is_small_;
};

class CpuDistances final : public DistanceEngine {
 public:
  std::size_t staging_bytes(const DistanceQuery&) const override { return 0; }
  std::shared_ptr<PayloadJob> job(Demand demand, std::shared_ptr<const DistanceQuery> query) const override {
    return std::make_shared<CpuQuery>(std::move(demand), std::move(query), scratch_);
  }

 private:
  const std::shared_ptr<Scratch> scratch_ = std::make_shared<Scratch>();
};

}  // namespace

std::shared_ptr<DistanceEngine> make_cpu_distances() { return std::make_shared<CpuDistances>(); }

}  // namespace lumigrad::serving
