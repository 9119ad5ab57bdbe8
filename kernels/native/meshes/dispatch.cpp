// Selects the loops that were compiled for an instruction set.
#include "meshes/cpu/engine.h"

#include <stdexcept>

#define LUMIGRAD_DECLARE_MESHES(isa)                                                        \
  namespace isa {                                                                           \
  void evaluate(const World&, const Spheres&, const Settings&, const Outputs&, Workspace&); \
  }

namespace lumigrad::meshes {

#ifdef LUMIGRAD_HAVE_portable
LUMIGRAD_DECLARE_MESHES(portable)
#endif
#ifdef LUMIGRAD_HAVE_avx2
LUMIGRAD_DECLARE_MESHES(avx2)
#endif
#ifdef LUMIGRAD_HAVE_avx512
LUMIGRAD_DECLARE_MESHES(avx512)
#endif

CpuEngine cpu_engine(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return {&avx512::evaluate};
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return {&avx2::evaluate};
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return {&portable::evaluate};
#endif
    default:
      throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
  }
}

}  // namespace lumigrad::meshes
