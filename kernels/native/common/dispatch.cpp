// Selects the loops that were compiled for an instruction set.
#include "common/levels.h"

#include <stdexcept>

#define LUMIGRAD_DECLARE_LEVELS(isa)                        \
  namespace isa {                                           \
  void convert_levels(const float*, std::size_t, uint8_t*); \
  }

namespace lumigrad {

#ifdef LUMIGRAD_HAVE_portable
LUMIGRAD_DECLARE_LEVELS(portable)
#endif
#ifdef LUMIGRAD_HAVE_avx2
LUMIGRAD_DECLARE_LEVELS(avx2)
#endif
#ifdef LUMIGRAD_HAVE_avx512
LUMIGRAD_DECLARE_LEVELS(avx512)
#endif

void convert_levels(Isa isa, const float* values, std::size_t count, uint8_t* levels) {
  switch (isa) {
#ifdef LUMIGRAD_HAVE_avx512
    case Isa::avx512:
      return avx512::convert_levels(values, count, levels);
#endif
#ifdef LUMIGRAD_HAVE_avx2
    case Isa::avx2:
      return avx2::convert_levels(values, count, levels);
#endif
#ifdef LUMIGRAD_HAVE_portable
    case Isa::portable:
      return portable::convert_levels(values, count, levels);
#endif
    default:
      throw std::logic_error("the loops for " + isa_name(isa) + " are not built");
  }
}

}  // namespace lumigrad
