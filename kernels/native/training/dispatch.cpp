// Selects the loops that were compiled for an instruction set.
#include "training/cpu/engine.h"

#include <stdexcept>

#define LUMIGRAD_DECLARE_TRAINING(isa)                                        \
  namespace isa {                                                             \
  void adam(const AdamGroup*, int, const AdamSettings&, double*, Workspace&); \
  void image_loss(const ImageLoss&, double*, Workspace&);                     \
  void mean(const Mean&, double*, Workspace&);                                \
  void count_touched(const int32_t*, int64_t, uint8_t*, double*, Workspace&); \
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
      return {&avx512::adam, &avx512::image_loss, &avx512::mean, &avx512::count_touched};
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return {&avx2::adam, &avx2::image_loss, &avx2::mean, &avx2::count_touched};
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return {&portable::adam, &portable::image_loss, &portable::mean, &portable::count_touched};
#endif
    default:
      throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
  }
}

}  // namespace lumigrad::training
