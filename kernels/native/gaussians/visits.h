// The Gaussians that the images of a forward pass needed, for occlusion culling.
#pragma once

#include <cstdint>

namespace lumigrad::gaussians {

// Edge of the square cells of pixels whose last Gaussians are reported together.
inline constexpr int kCell = 8;

// Outputs of a view, for ellipses on the film.
struct Visits {
  uint8_t* visited;  // [V, N] 1 if a Gaussian may contribute to a pixel, or end its blending; images without the others
                     // are the same
  int32_t* closers;  // [V, rows, columns] for each cell the number of the Gaussian at which its last pixel ended, or of
                     // one soon behind it; -1 if a pixel has not ended
};

}  // namespace lumigrad::gaussians
