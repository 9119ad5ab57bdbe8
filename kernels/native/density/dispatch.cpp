// Selects the loops that were compiled for an instruction set.
#include "density/cpu/engine.h"

#include <stdexcept>

namespace lumigrad::density {

namespace portable {
CpuEngine engine();
}
namespace avx2 {
CpuEngine engine();
}
namespace avx512 {
CpuEngine engine();
}

CpuEngine cpu_engine(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return avx512::engine();
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return avx2::engine();
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return portable::engine();
#endif
    default:
      throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
  }
}

}  // namespace lumigrad::density
