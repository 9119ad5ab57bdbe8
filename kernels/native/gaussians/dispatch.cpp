// Selects the loops that were compiled for an instruction set.
#include "gaussians/cpu/engine.h"
#include "gaussians/cpu/lists/ids.h"
#include "gaussians/cpu/lists/visits.h"
#include "gaussians/cpu/packed.h"

#include <stdexcept>

#define LUMIGRAD_DECLARE_GAUSSIANS(isa)                                                                           \
  namespace isa {                                                                                                 \
  void forward_view(const View*, int, const Settings&, const Scene&, const Outputs&, Pass&, Workspace&);          \
  void blend_backward(const View*, int, const Settings&, const Scene&, const Upstream&, const Gradients&, Pass&,  \
                      Workspace&);                                                                                \
  void project_backward(const View*, int, const Settings&, const Scene&, const Upstream&, const Gradients&, bool, \
                        Pass&, Workspace&);                                                                       \
  void find_ids(const View*, int, const Settings&, const Scene&, int32_t*, Pass&, Workspace&);                    \
  void find_visits(const View*, int, const Settings&, const Scene&, const Visits&, Pass&, Workspace&);            \
  void unpack_rows(const std::vector<RowBlock>&, int64_t, const UnpackedRows&);                                   \
  void pack_words(const UnpackedRows&, int64_t, int64_t, uint32_t*, float*);                                      \
  }

namespace lumigrad::gaussians {

#ifdef LUMIGRAD_HAVE_portable
LUMIGRAD_DECLARE_GAUSSIANS(portable)
#endif
#ifdef LUMIGRAD_HAVE_avx2
LUMIGRAD_DECLARE_GAUSSIANS(avx2)
#endif
#ifdef LUMIGRAD_HAVE_avx512
LUMIGRAD_DECLARE_GAUSSIANS(avx512)
#endif

namespace {

[[noreturn]] void throw_not_built(Isa isa) {
  throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
}

}  // namespace

CpuEngine cpu_engine(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return {&avx512::forward_view, &avx512::blend_backward, &avx512::project_backward};
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return {&avx2::forward_view, &avx2::blend_backward, &avx2::project_backward};
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return {&portable::forward_view, &portable::blend_backward, &portable::project_backward};
#endif
    default:
      throw_not_built(isa);
  }
}

FindIds cpu_ids(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return &avx512::find_ids;
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return &avx2::find_ids;
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return &portable::find_ids;
#endif
    default:
      throw_not_built(isa);
  }
}

FindVisits cpu_visits(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return &avx512::find_visits;
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return &avx2::find_visits;
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return &portable::find_visits;
#endif
    default:
      throw_not_built(isa);
  }
}

UnpackRows cpu_unpack(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return &avx512::unpack_rows;
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return &avx2::unpack_rows;
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return &portable::unpack_rows;
#endif
    default:
      throw_not_built(isa);
  }
}

PackWords cpu_pack_words(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return &avx512::pack_words;
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return &avx2::pack_words;
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return &portable::pack_words;
#endif
    default:
      throw_not_built(isa);
  }
}

}  // namespace lumigrad::gaussians
