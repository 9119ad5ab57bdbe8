// Selects the loops that were compiled for an instruction set.
#include "spheres/cpu/engine.h"

#include <atomic>
#include <stdexcept>

#define LUMIGRAD_DECLARE_SPHERES(isa)                                                                      \
  namespace isa {                                                                                          \
  void forward(const Camera&, const Settings&, const Scene&, const Outputs&, Workspace&);                  \
  void backward(const Camera&, const Settings&, const Scene&, const Upstream&, const Gradients&, uint64_t, \
                Workspace&);                                                                               \
  }

namespace lumigrad::spheres {

#ifdef LUMIGRAD_HAVE_portable
LUMIGRAD_DECLARE_SPHERES(portable)
#endif
#ifdef LUMIGRAD_HAVE_avx2
LUMIGRAD_DECLARE_SPHERES(avx2)
#endif
#ifdef LUMIGRAD_HAVE_avx512
LUMIGRAD_DECLARE_SPHERES(avx512)
#endif

uint64_t next_prepared() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

CpuEngine cpu_engine(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return {&avx512::forward, &avx512::backward};
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return {&avx2::forward, &avx2::backward};
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return {&portable::forward, &portable::backward};
#endif
    default:
      throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
  }
}

}  // namespace lumigrad::spheres
