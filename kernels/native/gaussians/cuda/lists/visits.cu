// Finds the Gaussians that were visited in the tiles' lists: a block of threads per tile reads at which position of the
// list each pixel ended.
#include "gaussians/cuda/lists/visits.h"

#include "common/cuda/launch.h"
#include "gaussians/cuda/pixel.cuh"

namespace lumigrad::gaussians {
namespace {

constexpr int kCellsAcross = kDeviceTile / kCell, kCells = kCellsAcross * kCellsAcross;

__global__ void __launch_bounds__(kTilePixels)
    visits_kernel(const __grid_constant__ CudaCall call, const __grid_constant__ CudaRecords records,
                  const __grid_constant__ TileLists lists, const int* lasts, const __grid_constant__ Visits visits) {
  __shared__ SharedArray<int, kCells> ends;  // The largest position at which a pixel of each cell ended.
  const TilePixel place = tile_pixel(lists, call.width, call.height);
  const TileList list(lists);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < kCells) ends[thread] = -1;
  __syncthreads();
  if (place.on_film) {
    const int cell = (place.y - list.top) / kCell * kCellsAcross + (place.x - list.left) / kCell;
    const int64_t pixel = (static_cast<int64_t>(place.view) * call.height + place.y) * call.width + place.x;
    atomicMax(&ends[cell], lasts[pixel]);
  }
  __syncthreads();
  const auto item_at = [&](int position) {
    return list.entries != nullptr ? list.entries[position] : lists.order[list.first + static_cast<unsigned>(position)];
  };
  int last = -1;
  for (int cell = 0; cell < kCells; ++cell) last = ::max(last, ends[cell]);
  for (int position = thread; position <= ::min(last, list.length - 1); position += kTilePixels) {
    const unsigned item = item_at(position);
    if (list.entries == nullptr && !reaches_tile(records.range(item), list)) continue;
    visits.visited[records.places.items[item]] = 1;
  }
  if (thread >= kCells) return;
  const int columns = (call.width + kCell - 1) / kCell, rows = (call.height + kCell - 1) / kCell;
  const int x = list.left / kCell + thread % kCellsAcross, y = list.top / kCell + thread / kCellsAcross;
  if (x >= columns || y >= rows) return;
  int number = -1;
  if (ends[thread] < list.length) {
    number = static_cast<int>(records.places.items[item_at(ends[thread])]) - place.view * call.scene.count;
  }
  visits.closers[(static_cast<int64_t>(place.view) * rows + y) * columns + x] = number;
}

}  // namespace

DeviceTimer cuda_visits(const View* views, int count, const Settings& settings, const Scene& scene,
                        const Visits& visits, const CudaPass& pass, CudaWorkspace& workspace, cudaStream_t stream) {
  DeviceTimer timer(stream);
  const CudaCallData data(views, count, settings, scene, workspace, stream);
  const std::size_t items = static_cast<std::size_t>(count) * scene.count;
  check(cudaMemsetAsync(visits.visited, 0, items * sizeof(*visits.visited), stream), "clearing a mask");
  const auto tiles = static_cast<unsigned>(pass.lists.views * pass.lists.tiles_x * pass.lists.tiles_y);
  launch(&visits_kernel, tiles, kTilePixels, 0, stream, data.call(), records_of(pass), pass.lists, pass.lasts.data(),
         visits);
  timer.mark("blend");
  return timer;
}

}  // namespace lumigrad::gaussians
