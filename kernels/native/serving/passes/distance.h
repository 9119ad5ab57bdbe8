// Distance queries of a stored world whose requests differ only in their spheres: everything else was checked and
// prepared for the first request. No function here needs Python.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshes/params.h"
#include "serving/passes/payload_job.h"

namespace lumigrad::serving {

// An output of a query, and its place in the payload of a reply.
struct DistanceOutput {
  std::string name;    // Name as the kernels use it, or "gradient".
  std::size_t offset;  // Bytes.
};

// Common part of the queries of one key. Immutable.
struct DistanceQuery {
  meshes::World world;  // Pointers in it stay valid as long as the query.
  meshes::Settings settings;
  float weight;
  std::int32_t batches, horizon, count;
  // Places of spheres and environments in the request's payload.
  std::size_t spheres_offset;
  std::optional<std::size_t> environments_offset;
  float most_coordinate;
  std::vector<DistanceOutput> outputs;

  std::size_t rows() const { return static_cast<std::size_t>(batches) * horizon * count; }
  // Bytes of an output in a payload, and of the array that the kernels write for it; throws std::invalid_argument for
  // an unknown output.
  std::size_t bytes(const DistanceOutput& output) const;
  std::size_t kernel_bytes(const DistanceOutput& output) const;
  // Converts what the kernels wrote, in place, to the output and copies it to its place in a payload.
  void send(const DistanceOutput& output, char* found, char* payload) const;
};

// Sets the kernels' pointer for an output.
void point(meshes::Outputs& outputs, const DistanceOutput& output, void* to);

class DistanceJob : public PayloadJob {
 public:
  DistanceJob(Demand demand, std::shared_ptr<const DistanceQuery> query)
      : PayloadJob(std::move(demand)), query_(std::move(query)) {}

  // Copies the spheres; false if a sphere is not finite or too far away, or an environment does not exist.
  bool accept(std::string_view request) override;

 protected:
  const std::shared_ptr<const DistanceQuery> query_;
  std::vector<float> spheres_;
  std::vector<std::int32_t> environments_;
};

// Answers queries on one device; one batch runs at a time.
class DistanceEngine {
 public:
  virtual ~DistanceEngine() = default;
  // The memory that the outputs of a job need on the host besides the payload.
  virtual std::size_t staging_bytes(const DistanceQuery& query) const = 0;
  virtual std::shared_ptr<PayloadJob> job(Demand demand, std::shared_ptr<const DistanceQuery> query) const = 0;
};

std::shared_ptr<DistanceEngine> make_cpu_distances();

}  // namespace lumigrad::serving
