// CUDA's qualifiers for functions and variables.
#pragma once

// Included first, since it uses the word __noinline__, which is a macro below.
#include <memory>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __managed__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// A system thread runs a block from its first thread to its last, and no other block meanwhile.
#define __shared__ constinit thread_local
