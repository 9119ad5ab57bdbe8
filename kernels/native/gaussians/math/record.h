// The record of a visible Gaussian in a view: 64 bytes for blending, and 64 bytes for the sums of the backward pass.
#pragma once

#include "common/math/number.h"

LG_BEGIN_ENGINE(gaussians)

inline constexpr int kRecordFloats = 16;
// The number of features (colours, then depth and inverse depth if requested) in the record; further features are in a
// separate array.
inline constexpr int kInlineFeatures = 8;

// Conics are stored times log2(e) / 2, so that exponentials are powers of two.
inline constexpr float kHalfLog2E = 0.72134752f;
// The position to which ended pixels are moved, where no Gaussian reaches them.
inline constexpr float kNowhere = 1e9f;

// Fields of a record; with d = (x, y) - pixel:  log2 alpha = log2_opacity - u^2 - v^2,  u = ux d.x + uy d.y,  v = vy
// d.y (the conic times log2(e) / 2 as a Cholesky product: it cannot become negative).
namespace record {
enum Field { kX, kY, kUx, kUy, kVy, kLog2Opacity, kHalfWidth, kHalfHeight, kFeatures };
}
// Sums over the pixels of v_sigma = dL/dsigma (0 where alpha is clamped) times 1, d.x, d.y, d.x^2, d.x d.y, d.y^2; of
// the absolute values of dL/dx and dL/dy; then of dL/dfeature.
namespace gradient_row {
enum Field { kOne, kDx, kDy, kDxDx, kDxDy, kDyDy, kAbsX, kAbsY, kFeatures };
}

LG_END
