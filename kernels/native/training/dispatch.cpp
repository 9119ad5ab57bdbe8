// Selects the loops that were compiled for an instruction set.
#include "training/cpu/engine.h"

#include <stdexcept>

#define LUMIGRAD_DECLARE_TRAINING(isa)                                                    \
  namespace isa {                                                                         \
  void adam(const AdamGroup*, int, const AdamSettings&, double*, Workspace&);             \
  void image_loss(const ImageLoss&, double*, Workspace&);                                 \
  void mean(const Mean&, double*, Workspace&);                                            \
  void count_touched(const int32_t*, int64_t, uint8_t*, double*, Workspace&);             \
  void plane_loss(const PlaneLoss*, int, double*, Workspace&);                            \
  void expose(const Exposure&);                                                           \
  void expose_backward(const Exposure&, float*, Workspace&);                              \
  void center_exposures(float*, int64_t);                                                 \
  void surface_normals(const Surface&, float*);                                           \
  void surface_backward(const Surface&, const float*, float*, bool, double*, Workspace&); \
  void normal_loss(const NormalLoss&, double*, Workspace&);                               \
  }
#define LUMIGRAD_TRAINING(isa) \
  {&isa::adam,                 \
   &isa::image_loss,           \
   &isa::mean,                 \
   &isa::count_touched,        \
   &isa::plane_loss,           \
   &isa::expose,               \
   &isa::expose_backward,      \
   &isa::center_exposures,     \
   &isa::surface_normals,      \
   &isa::surface_backward,     \
   &isa::normal_loss}

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
      return LUMIGRAD_TRAINING(avx512);
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return LUMIGRAD_TRAINING(avx2);
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return LUMIGRAD_TRAINING(portable);
#endif
    default:
      throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
  }
}

}  // namespace lumigrad::training
