// The forward state for a backward pass, for Python.
#pragma once

#include "common/math/number.h"
#include "gaussians/cuda/engine.h"

LG_BEGIN_ENGINE(gaussians)

struct CudaKept {
  CudaPass pass;
};

LG_END
