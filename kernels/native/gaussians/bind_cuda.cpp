// Python bindings of the Gaussian engine on CUDA devices. The Python package checks every argument before the call;
// views and settings are those of bind.cpp.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "common/cuda/binding.h"
#include "gaussians/bind_arrays.h"
#include "gaussians/cuda/engine.h"
#include "gaussians/cuda/kept.h"
#include "gaussians/cuda/lists/ids.h"
#include "gaussians/cuda/lists/visits.h"

namespace nb = nanobind;
using namespace nb::literals;

LG_BEGIN_ENGINE(gaussians)

namespace {

using Session = CudaSession<CudaWorkspace>;

CudaStages forward(Session& session, std::uintptr_t stream, CudaKept& kept, const Views& views,
                   const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Outputs outputs = make_outputs(arrays);
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaStages {
    return {
        cuda_forward(views.views.data(), views.count(), settings, scene, outputs, kept.pass, session.workspace, on)};
  });
}

CudaStages find_ids(Session& session, std::uintptr_t stream, const CudaKept& kept, const Views& views,
                    const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  int32_t* ids = find<int32_t>(arrays, "ids");
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaStages {
    return {cuda_ids(views.views.data(), views.count(), settings, scene, ids, kept.pass, session.workspace, on)};
  });
}

CudaStages find_visits(Session& session, std::uintptr_t stream, const CudaKept& kept, const Views& views,
                       const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Visits visits = make_visits(arrays);
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaStages {
    return {cuda_visits(views.views.data(), views.count(), settings, scene, visits, kept.pass, session.workspace, on)};
  });
}

CudaStages backward(Session& session, std::uintptr_t stream, const CudaKept& kept, const Views& views,
                    const Settings& settings, const nb::kwargs& arrays) {
  const Scene scene = make_scene(views, arrays);
  const Upstream upstream = make_upstream(arrays);
  const Gradients gradients = make_gradients(arrays);
  return on_device(session.device, stream, [&](cudaStream_t on) -> CudaStages {
    return {cuda_backward(views.views.data(), views.count(), settings, scene, upstream, gradients, kept.pass,
                          session.workspace, on)};
  });
}

// Rows, blocks and `packed` are those of bind.cpp.
void unpack_rows(int device, std::uintptr_t stream, const Counted& given, bool packed, int64_t begin,
                 const nb::kwargs& arrays) {
  const std::vector<RowBlock> blocks = make_blocks(given, packed);
  const UnpackedRows to = make_rows(arrays);
  on_device(device, stream, [&](cudaStream_t on) { cuda_unpack(blocks, begin, to, on); });
}

}  // namespace

LG_END

namespace lumigrad {

void bind_cuda_gaussians(nb::module_& m) {
  using gaussians::CudaKept;
  bind_session<gaussians::CudaWorkspace>(m, "GaussianCudaSession")
      .def(
          "set_pair_limit", [](gaussians::Session& s, std::size_t limit) { s.workspace.pair_limit = limit; }, "limit"_a,
          "More (tile, Gaussian) pairs than this are not listed; drawing is much slower then, but needs less memory.");
  nb::class_<CudaKept>(m, "GaussianCudaPass").def(nb::init<>()).def_prop_ro("bytes", [](const CudaKept& k) {
    return k.pass.bytes();
  });
  m.def("gaussian_cuda_forward", &gaussians::forward, "session"_a, "stream"_a, "state"_a, "views"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_cuda_find_ids", &gaussians::find_ids, "session"_a, "stream"_a, "state"_a, "views"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_cuda_find_visits", &gaussians::find_visits, "session"_a, "stream"_a, "state"_a, "views"_a,
        "settings"_a, "arrays"_a);
  m.def("gaussian_cuda_backward", &gaussians::backward, "session"_a, "stream"_a, "state"_a, "views"_a, "settings"_a,
        "arrays"_a);
  m.def("gaussian_cuda_unpack_rows", &gaussians::unpack_rows, "device"_a, "stream"_a, "blocks"_a, "packed"_a, "begin"_a,
        "arrays"_a);
}

}  // namespace lumigrad
