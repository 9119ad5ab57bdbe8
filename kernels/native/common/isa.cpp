#include "common/isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace lumigrad {
namespace {

bool machine_has(Isa isa) {
#if defined(__x86_64__)
  switch (isa) {
    case Isa::avx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
    case Isa::avx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    case Isa::portable:
      return true;
  }
#endif
  return isa == Isa::portable;
}

bool built(Isa isa) {
  switch (isa) {
    case Isa::avx512:
#ifdef LUMIGRAD_HAVE_avx512
      return true;
#else
      return false;
#endif
    case Isa::avx2:
#ifdef LUMIGRAD_HAVE_avx2
      return true;
#else
      return false;
#endif
    case Isa::portable:
      return true;
  }
  return false;
}

Isa initial_isa() {
  const char* wanted = std::getenv("LUMIGRAD_ISA");
  return wanted != nullptr && *wanted != '\0' ? parse_isa(wanted) : available_isas().back();
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{initial_isa()};
  return isa;
}

}  // namespace

std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (Isa isa : {Isa::portable, Isa::avx2, Isa::avx512}) {
    if (built(isa) && machine_has(isa)) isas.push_back(isa);
  }
  return isas;
}

Isa current_isa() { return chosen().load(); }

void set_isa(Isa isa) { chosen().store(isa); }

std::string isa_name(Isa isa) {
  switch (isa) {
    case Isa::avx512:
      return "avx512";
    case Isa::avx2:
      return "avx2";
    case Isa::portable:
      break;
  }
  return "portable";
}

Isa parse_isa(const std::string& name) {
  std::string known;
  for (Isa isa : available_isas()) {
    if (isa_name(isa) == name) return isa;
    known += (known.empty() ? "" : ", ") + isa_name(isa);
  }
  throw std::invalid_argument("instruction set '" + name + "' is not available here; available: " + known);
}

}  // namespace lumigrad
