// Relocation of rows on the device: samples rows in proportion to their opacities, and adapts the opacities and scales
// of copies.
#include "common/cuda/launch.h"
#include "common/cuda/memory.h"
#include "common/cuda/sort.h"
#include "density/cuda/columns.cuh"
#include "density/cuda/engine.h"
#include "density/math/sample.h"
#include "density/math/share.h"

namespace lumigrad::density {
namespace {

constexpr unsigned kThreads = 256;

__device__ inline int64_t row_of_thread() { return int64_t{blockIdx.x} * kThreads + threadIdx.x; }

// Writes weights, and 1 for rows without a weight; both arrays have one more entry for the sums.
__global__ void __launch_bounds__(kThreads)
    weigh_kernel(const float* opacities, int32_t count, float minimum, uint64_t* weights, uint32_t* without) {
  const int64_t row = row_of_thread();
  if (row > count) return;
  const uint64_t weight = row < count ? weight_of(opacities[row], minimum) : 0;
  weights[row] = weight;
  without[row] = row < count && weight == 0;
}

__global__ void __launch_bounds__(kThreads) exclude_kernel(const uint32_t* places, int32_t count, Weights to) {
  const int64_t row = row_of_thread();
  if (row == 0) to.excluded_count[0] = static_cast<int32_t>(places[count]);
  if (row < count && places[row + 1] > places[row]) to.excluded[places[row]] = static_cast<int32_t>(row);
}

__global__ void __launch_bounds__(kThreads) sample_kernel(Sample sample, Draw draw) {
  const int64_t number = row_of_thread();
  if (number >= sample.draws) return;
  const int32_t row = row_of_draw(sample.sums, sample.count, draw, static_cast<uint32_t>(number));
  sample.rows[number] = row;
  atomicAdd(sample.shares + row, 1);
}

}  // namespace

void cuda_weigh(const float* opacities, int32_t count, float minimum, const Weights& to, cudaStream_t stream) {
  const auto entries = static_cast<std::size_t>(count) + 1;
  DeviceBuffer<uint32_t> places(entries, stream);
  const unsigned blocks = blocks_for(entries, kThreads);
  launch(weigh_kernel, blocks, kThreads, 0, stream, opacities, count, minimum, to.sums, places.data());
  exclusive_sum(to.sums, to.sums, count + 1, stream);
  exclusive_sum(places.data(), places.data(), count + 1, stream);
  launch(exclude_kernel, blocks, kThreads, 0, stream, places.data(), count, to);
}

void cuda_sample_rows(const Sample& sample, const Draw& draw, cudaStream_t stream) {
  const unsigned blocks = blocks_for(static_cast<std::size_t>(sample.draws), kThreads);
  launch(sample_kernel, blocks, kThreads, 0, stream, sample, draw);
}

namespace {

__global__ void __launch_bounds__(kColumnThreads) share_kernel(Shared shared) {
  const int64_t row = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (row < shared.count && shared.shares[row] > 0) share_row(shared, row);
}

__global__ void __launch_bounds__(kColumnThreads) clear_kernel(const __grid_constant__ Columns all, Shared shared) {
  const Column& column = all.columns[blockIdx.y];
  each_number(column, shared.count, [&](int64_t row, unsigned index) {
    if (shared.shares[row] > 0) column.to[column.width * row + index] = 0.0f;
  });
}

__global__ void __launch_bounds__(kColumnThreads) move_kernel(const __grid_constant__ Columns all, Moves moves) {
  const Column& column = all.columns[blockIdx.y];
  each_number(column, moves.count, [&](int64_t number, unsigned index) {
    const int64_t width = column.width;
    column.to[width * moves.targets[number] + index] =
        column.fresh ? 0.0f : column.from[width * moves.sources[number] + index];
  });
}

}  // namespace

void cuda_share_rows(const Shared& shared, const Column* columns, int count, cudaStream_t stream) {
  const unsigned blocks = blocks_for(static_cast<std::size_t>(shared.count), kColumnThreads);
  launch(share_kernel, blocks, kColumnThreads, 0, stream, shared);
  launch_columns(clear_kernel, columns, count, shared.count, stream, shared);
}

void cuda_move_rows(const Moves& moves, const Column* columns, int count, cudaStream_t stream) {
  launch_columns(move_kernel, columns, count, moves.count, stream, moves);
}

}  // namespace lumigrad::density
