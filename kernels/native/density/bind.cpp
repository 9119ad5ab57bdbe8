// Python bindings of density control. The Python package checks every argument before the call. Each function returns
// its duration in milliseconds.
#include <nanobind/nanobind.h>

#include "common/stage_clock.h"
#include "density/bind_arrays.h"
#include "density/cpu/engine.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace lumigrad {
namespace {

using namespace density;

// Calls run(engine) for the instruction set in use, without the GIL.
template <class Run>
double timed(const Run& run) {
  nb::gil_scoped_release unlocked;
  double milliseconds[kMaxStages];
  StageClock clock(milliseconds);
  run(cpu_engine(current_isa()));
  clock.stage(0);
  return milliseconds[0];
}

double random_words(const Draw& draw, uint32_t first, const nb::kwargs& arrays) {
  // Words are signed integers here, because torch has few operations for unsigned integers.
  const auto rows = make_random_rows<int32_t>(arrays);
  return timed([&](const CpuEngine& engine) {
    engine.random_words(draw, first, rows.count, reinterpret_cast<uint32_t*>(rows.values));
  });
}

double normals(const Draw& draw, uint32_t first, const nb::kwargs& arrays) {
  const auto rows = make_random_rows<float>(arrays);
  return timed([&](const CpuEngine& engine) { engine.normals(draw, first, rows.count, rows.values); });
}

double add_noise(const Draw& draw, float strength, const nb::kwargs& arrays) {
  const Gaussians gaussians = make_gaussians(arrays);
  return timed([&](const CpuEngine& engine) { engine.add_noise(gaussians, draw, strength); });
}

double accumulate(float scale_x, float scale_y, float inverse_extent, const nb::kwargs& arrays) {
  const Observed observed = make_observed(arrays, scale_x, scale_y, inverse_extent);
  const Statistics to = make_statistics(arrays);
  return timed([&](const CpuEngine& engine) { engine.accumulate(observed, to); });
}

double classify(const Limits& limits, const nb::kwargs& arrays) {
  const Candidates rows = make_candidates(arrays);
  auto* fates = reinterpret_cast<Fate*>(find<uint8_t>(arrays, "fates"));
  auto* starts = find<int32_t>(arrays, "starts");
  return timed([&](const CpuEngine& engine) { engine.classify(rows, limits, fates, starts); });
}

double list_rows(int32_t count, const nb::kwargs& arrays) {
  const auto* fates = reinterpret_cast<const Fate*>(find<uint8_t>(arrays, "fates"));
  const auto* starts = find<int32_t>(arrays, "starts");
  auto* sources = find<int32_t>(arrays, "sources");
  return timed([&](const CpuEngine& engine) { engine.list_rows(fates, starts, count, sources); });
}

double gather(int32_t kept, const nb::list& before, const nb::list& after, const std::vector<bool>& fresh,
              const nb::kwargs& arrays) {
  const std::vector<Column> columns = make_columns(before, after, fresh);
  const Generation next = make_generation(kept, arrays);
  return timed([&](const CpuEngine& engine) { engine.gather(next, columns.data(), static_cast<int>(columns.size())); });
}

double split(const Draw& first_draw, const Draw& second_draw, int32_t first, int32_t count, bool revise_opacity,
             const nb::kwargs& arrays) {
  const Children children = make_children(first, count, revise_opacity, arrays);
  return timed([&](const CpuEngine& engine) { engine.split(children, first_draw, second_draw); });
}

double weigh(float minimum, const nb::kwargs& arrays) {
  CallArray<float> opacities;
  find_array(arrays, "opacities", opacities);
  const auto count = static_cast<int32_t>(opacities.shape(0));
  const Weights to = make_weights(arrays);
  return timed([&](const CpuEngine& engine) { engine.weigh(opacities.data(), count, minimum, to); });
}

double sample_rows(const Draw& draw, const nb::kwargs& arrays) {
  const Sample sample = make_sample(arrays);
  return timed([&](const CpuEngine& engine) { engine.sample_rows(sample, draw); });
}

double share_rows(float low, float high, const nb::list& fresh, const nb::kwargs& arrays) {
  const Shared shared = make_shared(low, high, arrays);
  const std::vector<Column> columns = make_columns(fresh, fresh, std::vector<bool>(nb::len(fresh), true));
  return timed(
      [&](const CpuEngine& engine) { engine.share_rows(shared, columns.data(), static_cast<int>(columns.size())); });
}

double move_rows(const nb::list& tensors, const std::vector<bool>& fresh, const nb::kwargs& arrays) {
  const Moves moves = make_moves(arrays);
  const std::vector<Column> columns = make_columns(tensors, tensors, fresh);
  return timed(
      [&](const CpuEngine& engine) { engine.move_rows(moves, columns.data(), static_cast<int>(columns.size())); });
}

Limits make_limits(float gradient, float clone_size, float split_radius, float prune_opacity, float child_opacity,
                   float prune_size, float child_size, float prune_radius) {
  return {gradient, clone_size, split_radius, prune_opacity, child_opacity, prune_size, child_size, prune_radius};
}

}  // namespace

void bind_density(nb::module_& m) {
  nb::class_<Draw>(m, "DensityDraw")
      .def(
          "__init__",
          [](Draw* self, uint64_t seed, uint64_t step, uint32_t stream) { new (self) Draw{seed, step, stream}; },
          "seed"_a, "step"_a, "stream"_a);
  m.attr("DENSITY_STREAMS") = nb::make_tuple("free", "noise", "first_child", "second_child", "relocate", "add");
  nb::class_<Limits>(m, "DensityLimits");
  m.attr("DENSITY_CHUNK") = kChunk;
  m.attr("DENSITY_GROUPS") = kGroups;
  m.def("make_density_limits", &make_limits, nb::kw_only(), "gradient"_a, "clone_size"_a, "split_radius"_a,
        "prune_opacity"_a, "child_opacity"_a, "prune_size"_a, "child_size"_a, "prune_radius"_a);
  m.def("density_random_words", &random_words, "draw"_a, "first"_a, "arrays"_a);
  m.def("density_normals", &normals, "draw"_a, "first"_a, "arrays"_a);
  m.def("density_add_noise", &add_noise, "draw"_a, "strength"_a, "arrays"_a);
  m.def("density_accumulate", &accumulate, "scale_x"_a, "scale_y"_a, "inverse_extent"_a, "arrays"_a);
  m.def("density_classify", &classify, "limits"_a, "arrays"_a);
  m.def("density_list_rows", &list_rows, "count"_a, "arrays"_a);
  m.def("density_gather", &gather, "kept"_a, "before"_a, "after"_a, "fresh"_a, "arrays"_a);
  m.def("density_weigh", &weigh, "minimum"_a, "arrays"_a);
  m.def("density_sample_rows", &sample_rows, "draw"_a, "arrays"_a);
  m.def("density_share_rows", &share_rows, "low"_a, "high"_a, "fresh"_a, "arrays"_a);
  m.def("density_move_rows", &move_rows, "tensors"_a, "fresh"_a, "arrays"_a);
  m.def("density_split", &split, "first_draw"_a, "second_draw"_a, "first"_a, "count"_a, "revise_opacity"_a, "arrays"_a);
}

}  // namespace lumigrad
