// Rows that share what one of them was, on the device.
#include "density/cuda.h"
#include "density/cuda_columns.cuh"
#include "density/math_share.h"

namespace lumigrad::density {
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
