// Python bindings of density control on CUDA devices. The Python package checks every argument before the call;
// arguments other than arrays are those of bind.cpp.
#include <nanobind/nanobind.h>

#include "common/cuda/binding.h"
#include "density/bind_arrays.h"
#include "density/cuda/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

LG_BEGIN_ENGINE(density)

namespace {

// Calls run(stream) on a device.
template <class Run>
CudaStages timed(int device, std::uintptr_t stream, const Run& run) {
  return on_device(device, stream, [&](cudaStream_t on) -> CudaStages {
    DeviceTimer timer(on);
    run(on);
    timer.mark("run");
    return {std::move(timer)};
  });
}

CudaStages random_words(int device, std::uintptr_t stream, const Draw& draw, uint32_t first, const nb::kwargs& arrays) {
  const auto rows = make_random_rows<int32_t>(arrays);
  return timed(device, stream, [&](cudaStream_t on) {
    cuda_random_words(draw, first, rows.count, reinterpret_cast<uint32_t*>(rows.values), on);
  });
}

CudaStages normals(int device, std::uintptr_t stream, const Draw& draw, uint32_t first, const nb::kwargs& arrays) {
  const auto rows = make_random_rows<float>(arrays);
  return timed(device, stream, [&](cudaStream_t on) { cuda_normals(draw, first, rows.count, rows.values, on); });
}

CudaStages add_noise(int device, std::uintptr_t stream, const Draw& draw, float strength, const nb::kwargs& arrays) {
  const Gaussians gaussians = make_gaussians(arrays);
  return timed(device, stream, [&](cudaStream_t on) { cuda_add_noise(gaussians, draw, strength, on); });
}

CudaStages accumulate(int device, std::uintptr_t stream, float scale_x, float scale_y, float inverse_extent,
                      const nb::kwargs& arrays) {
  const Observed observed = make_observed(arrays, scale_x, scale_y, inverse_extent);
  const Statistics to = make_statistics(arrays);
  return timed(device, stream, [&](cudaStream_t on) { cuda_accumulate(observed, to, on); });
}

CudaStages classify(int device, std::uintptr_t stream, const Limits& limits, const nb::kwargs& arrays) {
  const Candidates rows = make_candidates(arrays);
  auto* fates = reinterpret_cast<Fate*>(find<uint8_t>(arrays, "fates"));
  auto* starts = find<int32_t>(arrays, "starts");
  return timed(device, stream, [&](cudaStream_t on) { cuda_classify(rows, limits, fates, starts, on); });
}

CudaStages list_rows(int device, std::uintptr_t stream, int32_t count, const nb::kwargs& arrays) {
  const auto* fates = reinterpret_cast<const Fate*>(find<uint8_t>(arrays, "fates"));
  const auto* starts = find<int32_t>(arrays, "starts");
  auto* sources = find<int32_t>(arrays, "sources");
  return timed(device, stream, [&](cudaStream_t on) { cuda_list_rows(fates, starts, count, sources, on); });
}

CudaStages gather(int device, std::uintptr_t stream, int32_t kept, const nb::list& before, const nb::list& after,
                  const std::vector<bool>& fresh, const nb::kwargs& arrays) {
  const std::vector<Column> columns = make_columns(before, after, fresh);
  const Generation next = make_generation(kept, arrays);
  return timed(device, stream,
               [&](cudaStream_t on) { cuda_gather(next, columns.data(), static_cast<int>(columns.size()), on); });
}

CudaStages split(int device, std::uintptr_t stream, const Draw& first_draw, const Draw& second_draw, int32_t first,
                 int32_t count, bool revise_opacity, const nb::kwargs& arrays) {
  const Children children = make_children(first, count, revise_opacity, arrays);
  return timed(device, stream, [&](cudaStream_t on) { cuda_split(children, first_draw, second_draw, on); });
}

CudaStages weigh(int device, std::uintptr_t stream, float minimum, const nb::kwargs& arrays) {
  CallArray<float> opacities;
  find_array(arrays, "opacities", opacities);
  const auto count = static_cast<int32_t>(opacities.shape(0));
  const Weights to = make_weights(arrays);
  return timed(device, stream, [&](cudaStream_t on) { cuda_weigh(opacities.data(), count, minimum, to, on); });
}

CudaStages sample_rows(int device, std::uintptr_t stream, const Draw& draw, const nb::kwargs& arrays) {
  const Sample sample = make_sample(arrays);
  return timed(device, stream, [&](cudaStream_t on) { cuda_sample_rows(sample, draw, on); });
}

CudaStages share_rows(int device, std::uintptr_t stream, float low, float high, const nb::list& fresh,
                      const nb::kwargs& arrays) {
  const Shared shared = make_shared(low, high, arrays);
  const std::vector<Column> columns = make_columns(fresh, fresh, std::vector<bool>(nb::len(fresh), true));
  return timed(device, stream,
               [&](cudaStream_t on) { cuda_share_rows(shared, columns.data(), static_cast<int>(columns.size()), on); });
}

CudaStages move_rows(int device, std::uintptr_t stream, const nb::list& tensors, const std::vector<bool>& fresh,
                     const nb::kwargs& arrays) {
  const Moves moves = make_moves(arrays);
  const std::vector<Column> columns = make_columns(tensors, tensors, fresh);
  return timed(device, stream,
               [&](cudaStream_t on) { cuda_move_rows(moves, columns.data(), static_cast<int>(columns.size()), on); });
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_density(nb::module_& m) {
  m.def("density_cuda_random_words", &density::random_words, "device"_a, "stream"_a, "draw"_a, "first"_a, "arrays"_a);
  m.def("density_cuda_normals", &density::normals, "device"_a, "stream"_a, "draw"_a, "first"_a, "arrays"_a);
  m.def("density_cuda_add_noise", &density::add_noise, "device"_a, "stream"_a, "draw"_a, "strength"_a, "arrays"_a);
  m.def("density_cuda_accumulate", &density::accumulate, "device"_a, "stream"_a, "scale_x"_a, "scale_y"_a,
        "inverse_extent"_a, "arrays"_a);
  m.def("density_cuda_classify", &density::classify, "device"_a, "stream"_a, "limits"_a, "arrays"_a);
  m.def("density_cuda_list_rows", &density::list_rows, "device"_a, "stream"_a, "count"_a, "arrays"_a);
  m.def("density_cuda_gather", &density::gather, "device"_a, "stream"_a, "kept"_a, "before"_a, "after"_a, "fresh"_a,
        "arrays"_a);
  m.def("density_cuda_weigh", &density::weigh, "device"_a, "stream"_a, "minimum"_a, "arrays"_a);
  m.def("density_cuda_sample_rows", &density::sample_rows, "device"_a, "stream"_a, "draw"_a, "arrays"_a);
  m.def("density_cuda_share_rows", &density::share_rows, "device"_a, "stream"_a, "low"_a, "high"_a, "fresh"_a,
        "arrays"_a);
  m.def("density_cuda_move_rows", &density::move_rows, "device"_a, "stream"_a, "tensors"_a, "fresh"_a, "arrays"_a);
  m.def("density_cuda_split", &density::split, "device"_a, "stream"_a, "first_draw"_a, "second_draw"_a, "first"_a,
        "count"_a, "revise_opacity"_a, "arrays"_a);
}

}  // namespace lumigrad
