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
#ifdef LUMIGRAD_HAVE_portable
      return true;
#else
      return false;
#endif
  }
  return false;
}

Isa initial_isa() {
  const char* wanted = std::getenv("LUMIGRAD_ISA");
  if (wanted != nullptr && *wanted != '\0') return parse_isa(wanted);
  std::vector<Isa> isas = available_isas();
  if (isas.empty()) {
    throw std::runtime_error(
        "the CPU loops were built for the instruction set of another machine alone; build them here, or with "
        "LUMIGRAD_INSTRUCTION_SETS=ALL");
  }
  return isas.back();
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
