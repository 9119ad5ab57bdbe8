// Which tiles each Gaussian reaches, on the device.
#include <algorithm>
#include <optional>
#include <string>

#include "common/device_lists.cuh"
#include "gaussians/cuda_reach.cuh"
#include "gaussians/cuda_stages.h"

namespace lumigrad::gaussians {

void cuda_bin(const CudaCall& call, const CudaRecords& records, CudaPass& pass, PairRoom& pairs, cudaStream_t stream) {
  const auto items = static_cast<std::size_t>(call.views) * call.scene.count;
  const auto tiles = static_cast<std::size_t>(call.views) * pass.lists.tiles_x * pass.lists.tiles_y;
  const GaussianReach reach{records, log2_positive(call.settings.alpha_min), call.settings.pixel_center};
  std::optional<std::size_t> room = pairs.expected(items, tiles);
  PairCount& told = pairs.count(items, tiles);
  DeviceBuffer<unsigned> counts = count_tiles(reach, pass.lists, pass.tiles, told, stream);
  // Tiles that were not listed would go through all Gaussians: that is slow, and leaves no row for each pair, by which
  // deterministic sums are ordered.
  if (!room || call.settings.deterministic) {
    check(cudaStreamSynchronize(stream), "counting pairs of tiles and Gaussians");
    const std::size_t counted = told.read().value_or(0);
    if (counted > pairs.limit() && call.settings.deterministic) {
      throw DeviceMemoryError(std::to_string(counted) +
                              " pairs of tiles and Gaussians, each with a row of gradients, are" + " more than the " +
                              std::to_string(pairs.limit()) + " that deterministic sums may have");
    }
    room = counted > pairs.limit() ? 0 : std::max<std::size_t>(counted, 1);
  }
  list_tiles<Entry::item>(reach, std::move(counts), *room, pass.lists, pass.tiles, stream);
}

}  // namespace lumigrad::gaussians
