// Renders of stored scenes whose requests differ only in the poses of their cameras: everything else was checked and
// prepared for the first request. No function here needs Python.
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

// The encoding of an output in replies. Levels are whole numbers from 0 to 255 for values from 0 to 1.
enum class Encoding { plain, levels, float16, bfloat16 };

// An output of all views, and its place in the payload of a reply.
struct Output {
  std::string name;
  Encoding encoding;
  std::size_t values;
  std::size_t offset;  // Bytes.

  std::size_t bytes() const;
  // Whether the output is colours as levels, which some kernels write themselves; other conversions follow later.
  bool are_color_levels() const { return encoding == Encoding::levels && name == "color"; }
};

// Converts float32, or int32 if the encoding is plain, to `to`, which may have any alignment.
void encode(const Output& output, const void* from, char* to);

// The kernels' pose of a scene with a single, resting slice.
gaussians::Pose pose_of(const CameraPose& camera);

// Memory that the kernels of Gaussians write.
struct GaussianTargets {
  gaussians::Outputs images{};
  std::int32_t* ids = nullptr;
};

// Sets the kernels' pointer for an output, and for colours sent as levels the pointer for levels; throws
// std::invalid_argument for an unknown name.
void point(GaussianTargets& targets, const Output& output, void* to);
void point(spheres::Outputs& outputs, const Output& output, void* to);
// Sets the kernels' pointer for an image by name; "ids" is not an image of the kernels.
void point(gaussians::Outputs& outputs, const std::string& name, void* to);

// The number of the kernels' stages in a Render.
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
  // Whether the general path accepts views from these poses.
  virtual bool takes(const std::vector<CameraPose>& poses) const = 0;

  // Whether the kernels of devices other than the CPU also write levels of colours.
  virtual bool has_device_levels() const = 0;

  // Whether one thread renders it in less time than waking another thread takes.
  bool is_small() const;
  // Bytes of the outputs, excluding the gaps between them.
  std::size_t output_bytes() const;
  // Clears the gaps between the outputs in a payload.
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

  // The scene with these poses of its views; there may be several times as many poses as views.
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
  // Accepts rotations only.
  bool takes(const std::vector<CameraPose>& poses) const override;
  bool has_device_levels() const override { return false; }

  spheres::Camera camera(int view, const CameraPose& pose) const;

  std::vector<spheres::OpenCVLens> lenses;
  spheres::DepthRange range;
  spheres::Settings settings;
  spheres::Scene scene;  // Its pointers stay valid as long as the render.
};

// A request with its poses, and the place of its payload. `payload`, `staging` and the arrays of `render` stay valid
// until its job has ended, for ever if the outcome is kLost.
struct Request {
  std::shared_ptr<const Render> render;
  std::vector<CameraPose> poses;
  char* payload;
  char* staging;  // Memory of Renderer::staging_bytes, pinned if possible.
  // Whether the device can write outputs that need no conversion directly to the payload.
  bool is_payload_pinned = false;
};

// A request in the queue.
class RenderJob : public NativeJob, public Request {
 public:
  RenderJob(Demand demand, Request request) : NativeJob(std::move(demand)), Request(std::move(request)) {}

  // Completes the payload of a job that is done, on the thread that waited for it. Throws if the device has failed.
  virtual void complete() = 0;

  // Times of a complete job.
  RenderTimes times;
  // The number of views in the batch, set in one of its jobs; 0 in the other jobs.
  int batch_views = 0;
};

// Creates the jobs of one device, which share its memory: one batch runs at a time.
class Renderer {
 public:
  virtual ~Renderer() = default;
  // The memory that the outputs of a job need on the host besides the payload; the device can write to a pinned payload
  // itself.
  virtual std::size_t staging_bytes(const Render& render, bool is_payload_pinned) const = 0;
  virtual std::shared_ptr<RenderJob> job(Demand demand, Request request) const = 0;
};

std::shared_ptr<Renderer> make_cpu_renderer();

}  // namespace lumigrad::serving
