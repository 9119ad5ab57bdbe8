// Renders of stored scenes whose requests differ in the poses of their cameras only: everything else was checked and
// prepared for the first of them. No function here needs Python.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/pool.h"
#include "gaussians/cpu/engine.h"
#include "serving/job.h"
#include "serving/request.h"
#include "spheres/opencv_camera.h"

namespace lumigrad::serving {

// How an output of the kernels is sent. Levels are whole numbers from 0 to 255, of values from 0 to 1.
enum class Encoding { plain, levels, float16, bfloat16 };

// An output of all views, and its place in the payload of a reply.
struct Output {
  std::string name;
  Encoding encoding;
  std::size_t values;
  std::size_t offset;  // Bytes.

  std::size_t bytes() const;
  // Whether kernels that can write levels of colours do; all other conversions are made after them.
  bool are_color_levels() const { return encoding == Encoding::levels && name == "color"; }
};

// Converts float32, or int32 where it is plain, to `to`, which may have any alignment.
void encode(const Output& output, const void* from, char* to);

// The kernels' pose of the one slice of a scene, which does not move.
gaussians::Pose pose_of(const CameraPose& camera);

// Memory that the kernels of Gaussians write.
struct GaussianTargets {
  gaussians::Outputs images{};
  std::int32_t* ids = nullptr;
};

// Sets the kernels' pointer for an output, of colours as levels if it is sent so; throws std::invalid_argument for an
// unknown name.
void point(GaussianTargets& targets, const Output& output, void* to);
void point(spheres::Outputs& outputs, const Output& output, void* to);
// The same for an image as the kernels compute it; "ids" is none of these.
void point(gaussians::Outputs& outputs, const std::string& name, void* to);

// The kernels' stages in a Render.
constexpr int kRenderStages = 4;
using RenderStages = std::array<const char*, kRenderStages>;

// Milliseconds of the kernels' stages, and of moving outputs to the payload.
struct RenderTimes {
  std::array<double, kRenderStages> stages{};
  double download = 0.0;
};

// Common part of the requests of one key: the scene, its settings, lenses and outputs. Immutable.
struct Render {
  virtual ~Render() = default;
  // Names as in replies.
  virtual const RenderStages& stages() const = 0;
  virtual std::size_t views_count() const = 0;
  // Pixels and primitives of all views.
  virtual std::int64_t work() const = 0;
  // Whether the general way draws views from these poses.
  virtual bool takes(const std::vector<CameraPose>& poses) const = 0;

  // Whether the kernels of other devices than the CPU write levels of colours, too.
  virtual bool has_device_levels() const = 0;

  // Whether one thread draws it in less time than it takes to wake another.
  bool is_small() const;
  // Bytes of the outputs without what lies between them.
  std::size_t output_bytes() const;
  // Clears what lies between the outputs in a payload.
  void clear_gaps(char* payload) const;

  std::vector<Output> outputs;  // Outputs by their places; the last one ends with the payload.
  std::size_t payload_bytes = 0;
};

struct GaussianRender final : Render {
  const RenderStages& stages() const override;
  std::size_t views_count() const override { return views.size(); }
  std::int64_t work() const override;
  bool takes(const std::vector<CameraPose>& poses) const override { return poses.size() == views.size(); }
  bool has_device_levels() const override { return true; }

  // The scene with the poses of its views, of which there may be several times as many.
  gaussians::Scene scene_at(const std::vector<gaussians::Pose>& poses) const;

  std::vector<gaussians::View> views;
  gaussians::Settings settings;
  // Pointers in the scene stay valid as long as the render; poses come with each request.
  gaussians::Scene scene;
  std::vector<std::int32_t> slice_begins;
  gaussians::SlicePose slice_pose;
};

struct SphereRender final : Render {
  const RenderStages& stages() const override;
  std::size_t views_count() const override { return lenses.size(); }
  std::int64_t work() const override;
  // Rotations alone.
  bool takes(const std::vector<CameraPose>& poses) const override;
  bool has_device_levels() const override { return false; }

  spheres::Camera camera(int view, const CameraPose& pose) const;

  std::vector<spheres::OpenCVLens> lenses;
  spheres::DepthRange range;
  spheres::Settings settings;
  spheres::Scene scene;  // Its pointers stay valid as long as the render.
};

// Request with its poses, and the place of its payload. `payload`, `staging` and the arrays of `render` stay valid
// until its job has ended, for ever if the outcome is kLost.
struct Request {
  std::shared_ptr<const Render> render;
  std::vector<CameraPose> poses;
  char* payload;
  char* staging;  // Memory of Renderer::staging_bytes, pinned if it can be.
  // Whether the device can write to the payload, where an output is sent as the kernels write it.
  bool is_payload_pinned = false;
};

// A request in the queue.
class RenderJob : public NativeJob, public Request {
 public:
  RenderJob(Demand demand, Request request) : NativeJob(std::move(demand)), Request(std::move(request)) {}

  // Completes the payload of a job that is done, on the thread that has waited for it. Throws if the device has failed.
  virtual void complete() = 0;

  // Times of a job that is complete.
  RenderTimes times;
  // The views of its batch, in one of the batch's jobs; 0 in the others.
  int batch_views = 0;
};

// Makes the jobs of one device, which share its memory: one batch runs at a time.
class Renderer {
 public:
  virtual ~Renderer() = default;
  // The memory that the outputs of a job need on the host beside the payload, to which the device can write if it is
  // pinned.
  virtual std::size_t staging_bytes(const Render& render, bool is_payload_pinned) const = 0;
  virtual std::shared_ptr<RenderJob> job(Demand demand, Request request) const = 0;
};

std::shared_ptr<Renderer> make_cpu_renderer();

}  // namespace lumigrad::serving
