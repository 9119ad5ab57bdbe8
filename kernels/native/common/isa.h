// Choice of the instruction set of the CPU loops.
#pragma once

#include <string>
#include <vector>

namespace lumigrad {

enum class Isa { portable, avx2, avx512 };

// The instruction sets that were built and that this machine can run, slowest first.
std::vector<Isa> available_isas();

// The instruction set in use: the fastest available, unless LUMIGRAD_ISA or set_isa selects another.
Isa current_isa();
void set_isa(Isa isa);

std::string isa_name(Isa isa);
// Throws std::invalid_argument for a name that is unknown or not available here.
Isa parse_isa(const std::string& name);

}  // namespace lumigrad
