// Selects the loops that were compiled for an instruction set.
#include "training/cpu/engine.h"

#include <stdexcept>

#define LUMIGRAD_DECLARE_TRAINING(isa)                                        \
  namespace isa {                                                             \
  void adam(const AdamGroup*, int, const AdamSettings&, double*, Workspace&); \
  void image_loss(const ImageLoss&, double*, Workspace&);                     \
  }

namespace lumigrad::training {

#ifdef LUMIGRAD_HAVE_portable
LUMIGRAD_DECLARE_TRAINING(portable)
#endif
#ifdef LUMIGRAD_HAVE_avx2
LUMIGRAD_DECLARE_TRAINING(avx2)
#endif
#ifdef LUMIGRAD_HAVE_avx512
LUMIGRAD_DECLARE_TRAINING(avx512)
#endif

CpuEngine cpu_engine(Isa isa) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return {&avx512::adam, &avx512::image_loss};
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return {&avx2::adam, &avx2::image_loss};
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return {&portable::adam, &portable::image_loss};
#endif
    default:
      throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
  }
}

}  // namespace lumigrad::training
