// Selects the loops that were compiled for an instruction set.
#include "density/cpu/engine.h"

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
    default:
      return portable::engine();
  }
}

}  // namespace lumigrad::density
