// Renders of stored scenes that keep their forward state, and their backward passes: requests differ only in the poses
// of cameras, and in the gradients of outputs. No function here needs Python.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/pool.h"
#include "gaussians/cpu/engine.h"
#include "serving/passes/payload_job.h"
#include "serving/render.h"

namespace lumigrad::serving {

// An image of all views that a backward pass needs.
struct KeptImage {
  std::string name;
  std::size_t values;
};

// Common part of the retained renders of one key. Immutable.
struct RetainedRender {
  const GaussianRender& gaussians() const { return static_cast<const GaussianRender&>(*render); }

  std::shared_ptr<const Render> render;
  std::vector<KeptImage> images;
  spheres::Settings backward{};  // Settings of the backward pass of spheres.
};

// A forward state. While it is in use, only the device's thread accesses it.
struct RetainedPass {
  RetainedPass(std::shared_ptr<const RetainedRender> kind, std::vector<CameraPose> cameras);
  virtual ~RetainedPass() = default;
  // The memory that the kernels keep, without images.
  virtual std::size_t bytes() const = 0;
  gaussians::Scene scene() const { return kind->gaussians().scene_at(poses); }

  const std::shared_ptr<const RetainedRender> kind;
  const std::vector<CameraPose> cameras;
  std::vector<gaussians::Pose> poses;
};

struct CpuRetained final : RetainedPass {
  CpuRetained(std::shared_ptr<const RetainedRender> kind, std::vector<CameraPose> cameras);
  std::size_t bytes() const override { return pass.bytes(); }
  float* image(std::size_t index) { return images[index]->ensure<float>(kind->images[index].values); }

  gaussians::Pass pass;
  std::vector<std::unique_ptr<Buffer>> images;  // Values of four bytes, in the order of the kind's images.
  std::vector<std::uint64_t> prepared;          // For spheres: what the workspace held after each view.
};

// The gradient of an output, in the payload of a request unless its job says otherwise.
struct Incoming {
  std::string name;
  Encoding encoding;  // Plain, float16 or bfloat16.
  std::size_t values;
  std::size_t offset;
};

// Common part of the backward passes of one key. Immutable.
struct BackwardKind {
  std::vector<Incoming> incoming;
  std::vector<Output> gradients;  // Gradients by their places; the last one ends with the payload.
  std::size_t views = 0;
  bool has_spheres = false;

  // Whether they include gradients of cameras.
  bool has_cameras() const;
  // Arrays that the kernels write, with their bytes. The sums from which gradients of cameras follow come first, since
  // they are doubles; then the gradients, with the background's once for each view.
  std::vector<std::pair<std::string, std::size_t>> results() const;
};

// Sets the kernels' pointers for an image or the gradient of an output, and for a result; throws
// std::invalid_argument for an unknown name.
void point_image(gaussians::Upstream& upstream, const std::string& name, const float* from);
void point_incoming(gaussians::Upstream& upstream, const std::string& name, const float* from);
void point_gradient(gaussians::Gradients& gradients, const std::string& name, void* to);
void point_image(spheres::Upstream& upstream, const std::string& name, const void* from);
void point_incoming(spheres::Upstream& upstream, const std::string& name, const float* from);
void point_gradient(spheres::Gradients& gradients, const std::string& name, float* to);

// The bytes of the values of an output's gradient.
std::size_t bytes_of(const Incoming& incoming);
// The values of an output's gradient as float32.
std::vector<float> decoded(const Incoming& incoming, const char* from);
// The number of values of an encoded output that are NaN or infinite.
std::size_t count_nonfinite(const Output& output, const char* from);

class BackwardJob : public PayloadJob {
 public:
  BackwardJob(Demand demand, std::shared_ptr<const BackwardKind> kind)
      : PayloadJob(std::move(demand)), kind_(std::move(kind)) {}

  bool accept(std::string_view request) override;
  std::span<const char* const> stages() const override;

  // Gradients of outputs outside the request's payload, by their index; valid until they are accepted.
  std::map<std::size_t, const char*> outside;
  // Values of the reply, once the job is complete.
  std::size_t nonfinite = 0;

 protected:
  // Computes the gradients from the kind's results, encodes them into their places, and counts non-finite values.
  void send_all(const std::vector<const void*>& results, const std::vector<CameraPose>& cameras);
  void send(const Output& gradient, const float* values);

  const std::shared_ptr<const BackwardKind> kind_;
  std::vector<std::vector<float>> incoming_;
};

// Makes the states and jobs of one device; one job runs at a time.
class PassEngine {
 public:
  virtual ~PassEngine() = default;
  // A state for a render to fill.
  virtual std::shared_ptr<RetainedPass> pass(std::shared_ptr<const RetainedRender> kind,
                                             const std::vector<CameraPose>& cameras) const = 0;
  // The memory that the outputs of a job need on the host besides the payload.
  virtual std::size_t staging_bytes(const RetainedRender& kind) const = 0;
  virtual std::size_t staging_bytes(const BackwardKind& kind) const = 0;
  virtual std::shared_ptr<PayloadJob> render(Demand demand, std::shared_ptr<RetainedPass> pass) const = 0;
  virtual std::shared_ptr<BackwardJob> backward(Demand demand, std::shared_ptr<const BackwardKind> kind,
                                                std::shared_ptr<RetainedPass> pass) const = 0;
};

std::shared_ptr<PassEngine> make_cpu_passes();

}  // namespace lumigrad::serving
