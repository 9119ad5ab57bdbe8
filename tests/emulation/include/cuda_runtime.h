// Stands in for CUDA's header of this name when kernels are built with a host compiler.
#pragma once

#include "emulation/atomics.h"
#include "emulation/device.h"
#include "emulation/mathematics.h"
#include "emulation/qualifiers.h"
#include "emulation/runtime.h"
#include "emulation/vector_types.h"
