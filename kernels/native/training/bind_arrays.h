// Conversion of the named arrays of a Python call to the structs of params.h, for CPU and CUDA. The Python package
// checks everything before the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <string>
#include <vector>

#include "common/bind_arrays.h"
#include "training/params.h"

LG_BEGIN_ENGINE(training)

// Gradients of 16-bit types are passed as integers.
inline AdamGroup make_adam_group(const nanobind::dict& fields) {
  const auto arrays = nanobind::borrow<nanobind::kwargs>(fields);
  AdamGroup g{};
  CallArray<float> raw;
  if (find_array(arrays, "raw", raw)) {
    g.raw = raw.data();
    g.count = static_cast<int64_t>(raw.shape(0));
    g.width = static_cast<int32_t>(raw.row_size());
  }
  g.gradient_type = static_cast<Real>(nanobind::cast<int>(fields["gradient_type"]));
  if (g.gradient_type == Real::float32) {
    g.gradient = find<float>(arrays, "gradient");
  } else {
    g.gradient = find<int16_t>(arrays, "gradient");
  }
  g.factors = find<float>(arrays, "factors");
  g.degree = nanobind::cast<int32_t>(fields["degree"]);
  g.first = find<float>(arrays, "first");
  g.second = find<float>(arrays, "second");
  g.value = find<float>(arrays, "value");
  g.rows = find<uint8_t>(arrays, "rows");
  g.activation = static_cast<Activation>(nanobind::cast<int>(fields["activation"]));
  g.step_size = nanobind::cast<float>(fields["step_size"]);
  g.head = nanobind::cast<int32_t>(fields["head"]);
  g.head_step_size = nanobind::cast<float>(fields["head_step_size"]);
  return g;
}

inline std::vector<AdamGroup> make_adam_groups(const nanobind::list& groups) {
  std::vector<AdamGroup> made;
  for (nanobind::handle group : groups) made.push_back(make_adam_group(nanobind::cast<nanobind::dict>(group)));
  return made;
}

// Finds floats under this name, or bytes under the name with the suffix "_bytes".
inline Plane find_plane(const nanobind::kwargs& arrays, const char* name, Numbers bytes = Numbers::levels) {
  if (const float* floats = find<float>(arrays, name)) return {floats, Numbers::floats};
  return {find<uint8_t>(arrays, (std::string(name) + "_bytes").c_str()), bytes};
}

inline ImageLoss make_image_loss(const nanobind::kwargs& arrays) {
  ImageLoss loss{};
  CallArray<float> image;
  if (find_array(arrays, "image", image)) {
    loss.image = image.data();
    int32_t* const sizes[] = {&loss.views, &loss.height, &loss.width, &loss.channels};
    for (int i = 0; i < 4; ++i) *sizes[i] = static_cast<int32_t>(image.shape(i));
  }
  loss.target = find_plane(arrays, "target");
  loss.mask = find_plane(arrays, "mask", Numbers::flags);
  loss.gradient = find<float>(arrays, "gradient");
  loss.l1 = nanobind::cast<float>(arrays["l1"]);
  loss.l2 = nanobind::cast<float>(arrays["l2"]);
  loss.dssim = nanobind::cast<float>(arrays["dssim"]);
  loss.valid = nanobind::cast<bool>(arrays["valid"]);
  loss.view_weight = nanobind::cast<double>(arrays["view_weight"]);
  return loss;
}

// The mean of values, and the gradient that `slope` is added to.
inline Mean make_mean(const nanobind::kwargs& arrays, float slope) {
  Mean mean{};
  CallArray<float> values;
  if (find_array(arrays, "values", values)) {
    mean.values = values.data();
    mean.count = static_cast<int64_t>(values.size());
  }
  mean.gradient = find<float>(arrays, "gradient");
  mean.slope = slope;
  return mean;
}

// The plane losses of all views, from planes [views, ...].
inline std::vector<PlaneLoss> make_plane_losses(const nanobind::kwargs& arrays) {
  CallArray<float> plane;
  std::vector<PlaneLoss> views;
  if (!find_array(arrays, "plane", plane)) return views;
  const auto pixels = static_cast<int64_t>(plane.row_size());
  const float* target = find<float>(arrays, "target");
  float* gradient = find<float>(arrays, "gradient");
  for (int64_t v = 0; v < static_cast<int64_t>(plane.shape(0)); ++v) {
    views.push_back({plane.data() + v * pixels,
                     {target + v * pixels, Numbers::floats},
                     gradient + v * pixels,
                     pixels,
                     nanobind::cast<bool>(arrays["known"]),
                     nanobind::cast<float>(arrays["weight"])});
  }
  return views;
}

// The surfaces of all views, from depths [views, height, width], rotations [views, 3, 3] and intrinsics [views, 4].
inline std::vector<Surface> make_surfaces(const nanobind::kwargs& arrays) {
  CallArray<float> depth;
  std::vector<Surface> views;
  if (!find_array(arrays, "depth", depth)) return views;
  const float *rotations = find<float>(arrays, "rotations"), *intrinsics = find<float>(arrays, "intrinsics");
  const auto height = static_cast<int32_t>(depth.shape(1)), width = static_cast<int32_t>(depth.shape(2));
  for (int64_t v = 0; v < static_cast<int64_t>(depth.shape(0)); ++v) {
    const float* k = intrinsics + 4 * v;
    Surface& made =
        views.emplace_back(Surface{depth.data() + v * height * width, height, width, k[0], k[1], k[2], k[3], {}});
    std::copy(rotations + 9 * v, rotations + 9 * v + 9, made.rotation);
  }
  return views;
}

inline NormalLoss make_normal_loss(const nanobind::kwargs& arrays) {
  NormalLoss loss{};
  CallArray<float> alpha;
  if (find_array(arrays, "alpha", alpha)) {
    loss.alpha = alpha.data();
    loss.pixels = static_cast<int64_t>(alpha.size());
  }
  loss.normals = find<float>(arrays, "normals");
  loss.surface = find<float>(arrays, "surface_normals");
  loss.d_alpha = find<float>(arrays, "d_alpha");
  loss.d_normals = find<float>(arrays, "d_normals");
  loss.d_surface = find<float>(arrays, "d_surface_normals");
  loss.slope = nanobind::cast<float>(arrays["slope"]);
  return loss;
}

// The exposures of all views, from images [views, height, width, 3]; `exposed` is the array of this name.
inline std::vector<Exposure> make_exposures(const nanobind::kwargs& arrays, const char* exposed) {
  CallArray<float> image;
  std::vector<Exposure> views;
  if (!find_array(arrays, "image", image)) return views;
  const auto size = static_cast<int64_t>(image.row_size());
  const float* matrices = find<float>(arrays, "matrices");
  float* to = find<float>(arrays, exposed);
  for (int64_t v = 0; v < static_cast<int64_t>(image.shape(0)); ++v) {
    views.push_back({matrices + v * kExposure, image.data() + v * size, to + v * size, size / 3});
  }
  return views;
}

LG_END
