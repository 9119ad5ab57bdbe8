// Python bindings of density control on CUDA devices. The Python package checks every argument before the call;
// arguments other than arrays are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <optional>

#include "common/cuda/launch.h"
#include "common/cuda/timer.h"
#include "density/bind_arrays.h"
#include "density/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

// One namespace per build keeps the emulation's classes from being taken for those of a GPU.
LG_BEGIN_ENGINE(density)

// Device and stream of calls.
struct CudaPlace {
  int device;
  std::uintptr_t stream;
};

// The times of a call.
struct CudaStages {
  DeviceTimer timer;

  std::optional<double> milliseconds() const {
    const auto stages = timer.milliseconds();
    return stages.empty() ? std::nullopt : std::optional(stages.front().second);
  }
};

namespace {

// Calls run(stream) on the device of `place`, without Python's lock.
template <class Run>
CudaStages timed(const CudaPlace& place, const Run& run) {
  nb::gil_scoped_release unlocked;
  const DeviceGuard guard(place.device);
  const auto stream = reinterpret_cast<cudaStream_t>(place.stream);
  DeviceTimer timer(stream);
  run(stream);
  timer.mark("run");
  return {std::move(timer)};
}

CudaStages random_words(const CudaPlace& place, const Draw& draw, uint32_t first, const nb::kwargs& arrays) {
  const auto rows = make_random_rows<int32_t>(arrays);
  return timed(place, [&](cudaStream_t stream) {
    cuda_random_words(draw, first, rows.count, reinterpret_cast<uint32_t*>(rows.values), stream);
  });
}

CudaStages normals(const CudaPlace& place, const Draw& draw, uint32_t first, const nb::kwargs& arrays) {
  const auto rows = make_random_rows<float>(arrays);
  return timed(place, [&](cudaStream_t stream) { cuda_normals(draw, first, rows.count, rows.values, stream); });
}

CudaStages add_noise(const CudaPlace& place, const Draw& draw, float strength, const nb::kwargs& arrays) {
  const Gaussians gaussians = make_gaussians(arrays);
  return timed(place, [&](cudaStream_t stream) { cuda_add_noise(gaussians, draw, strength, stream); });
}

CudaStages accumulate(const CudaPlace& place, float scale_x, float scale_y, float inverse_extent,
                      const nb::kwargs& arrays) {
  const Observed observed = make_observed(arrays, scale_x, scale_y, inverse_extent);
  const Statistics to = make_statistics(arrays);
  return timed(place, [&](cudaStream_t stream) { cuda_accumulate(observed, to, stream); });
}

CudaStages classify(const CudaPlace& place, const Limits& limits, const nb::kwargs& arrays) {
  const Candidates rows = make_candidates(arrays);
  auto* fates = reinterpret_cast<Fate*>(find<uint8_t>(arrays, "fates"));
  auto* starts = find<int32_t>(arrays, "starts");
  return timed(place, [&](cudaStream_t stream) { cuda_classify(rows, limits, fates, starts, stream); });
}

CudaStages list_rows(const CudaPlace& place, int32_t count, const nb::kwargs& arrays) {
  const auto* fates = reinterpret_cast<const Fate*>(find<uint8_t>(arrays, "fates"));
  const auto* starts = find<int32_t>(arrays, "starts");
  auto* sources = find<int32_t>(arrays, "sources");
  return timed(place, [&](cudaStream_t stream) { cuda_list_rows(fates, starts, count, sources, stream); });
}

CudaStages gather(const CudaPlace& place, int32_t kept, const nb::list& before, const nb::list& after,
                  const std::vector<bool>& fresh, const nb::kwargs& arrays) {
  const std::vector<Column> columns = make_columns(before, after, fresh);
  const Generation next = make_generation(kept, arrays);
  return timed(
      place, [&](cudaStream_t stream) { cuda_gather(next, columns.data(), static_cast<int>(columns.size()), stream); });
}

CudaStages split(const CudaPlace& place, const Draw& first_draw, const Draw& second_draw, int32_t first, int32_t count,
                 bool revise_opacity, const nb::kwargs& arrays) {
  const Children children = make_children(first, count, revise_opacity, arrays);
  return timed(place, [&](cudaStream_t stream) { cuda_split(children, first_draw, second_draw, stream); });
}

CudaStages weigh(const CudaPlace& place, float minimum, const nb::kwargs& arrays) {
  CallArray<float> opacities;
  find_array(arrays, "opacities", opacities);
  const auto count = static_cast<int32_t>(opacities.shape(0));
  const Weights to = make_weights(arrays);
  return timed(place, [&](cudaStream_t stream) { cuda_weigh(opacities.data(), count, minimum, to, stream); });
}

CudaStages sample_rows(const CudaPlace& place, const Draw& draw, const nb::kwargs& arrays) {
  const Sample sample = make_sample(arrays);
  return timed(place, [&](cudaStream_t stream) { cuda_sample_rows(sample, draw, stream); });
}

CudaStages share_rows(const CudaPlace& place, float low, float high, const nb::list& fresh, const nb::kwargs& arrays) {
  const Shared shared = make_shared(low, high, arrays);
  const std::vector<Column> columns = make_columns(fresh, fresh, std::vector<bool>(nb::len(fresh), true));
  return timed(place, [&](cudaStream_t stream) {
    cuda_share_rows(shared, columns.data(), static_cast<int>(columns.size()), stream);
  });
}

CudaStages move_rows(const CudaPlace& place, const nb::list& tensors, const std::vector<bool>& fresh,
                     const nb::kwargs& arrays) {
  const Moves moves = make_moves(arrays);
  const std::vector<Column> columns = make_columns(tensors, tensors, fresh);
  return timed(place, [&](cudaStream_t stream) {
    cuda_move_rows(moves, columns.data(), static_cast<int>(columns.size()), stream);
  });
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_density(nb::module_& m) {
  using density::CudaPlace;
  using density::CudaStages;
  nb::class_<CudaPlace>(m, "DensityCudaPlace")
      .def(
          "__init__", [](CudaPlace* self, int device, std::uintptr_t stream) { new (self) CudaPlace{device, stream}; },
          "device"_a, "stream"_a);
  nb::class_<CudaStages>(m, "DensityCudaStages")
      .def("milliseconds", &CudaStages::milliseconds, "None while the device is still at work on the call.");
  m.def("density_cuda_random_words", &density::random_words, "place"_a, "draw"_a, "first"_a, "arrays"_a);
  m.def("density_cuda_normals", &density::normals, "place"_a, "draw"_a, "first"_a, "arrays"_a);
  m.def("density_cuda_add_noise", &density::add_noise, "place"_a, "draw"_a, "strength"_a, "arrays"_a);
  m.def("density_cuda_accumulate", &density::accumulate, "place"_a, "scale_x"_a, "scale_y"_a, "inverse_extent"_a,
        "arrays"_a);
  m.def("density_cuda_classify", &density::classify, "place"_a, "limits"_a, "arrays"_a);
  m.def("density_cuda_list_rows", &density::list_rows, "place"_a, "count"_a, "arrays"_a);
  m.def("density_cuda_gather", &density::gather, "place"_a, "kept"_a, "before"_a, "after"_a, "fresh"_a, "arrays"_a);
  m.def("density_cuda_weigh", &density::weigh, "place"_a, "minimum"_a, "arrays"_a);
  m.def("density_cuda_sample_rows", &density::sample_rows, "place"_a, "draw"_a, "arrays"_a);
  m.def("density_cuda_share_rows", &density::share_rows, "place"_a, "low"_a, "high"_a, "fresh"_a, "arrays"_a);
  m.def("density_cuda_move_rows", &density::move_rows, "place"_a, "tensors"_a, "fresh"_a, "arrays"_a);
  m.def("density_cuda_split", &density::split, "place"_a, "first_draw"_a, "second_draw"_a, "first"_a, "count"_a,
        "revise_opacity"_a, "arrays"_a);
}

}  // namespace lumigrad
