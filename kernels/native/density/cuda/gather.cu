// Copies rows into the arrays of the next generation, on the device.
#include "density/cuda/columns.cuh"
#include "density/cuda/engine.h"
#include "density/math/split.h"

namespace lumigrad::density {
namespace {

__global__ void __launch_bounds__(kColumnThreads) gather_kernel(const __grid_constant__ Columns all, Generation next) {
  const Column& column = all.columns[blockIdx.y];
  each_number(column, next.count, [&](int64_t row, unsigned index) {
    const int64_t width = column.width;
    const bool fresh = column.fresh && row >= next.kept;
    column.to[width * row + index] = fresh ? 0.0f : column.from[width * next.sources[row] + index];
  });
}

__global__ void __launch_bounds__(kColumnThreads) split_kernel(Children children, Draw first, Draw second) {
  const int64_t number = int64_t{blockIdx.x} * kColumnThreads + threadIdx.x;
  if (number < children.count) make_children(children, first, second, number);
}

}  // namespace

void cuda_gather(const Generation& next, const Column* columns, int count, cudaStream_t stream) {
  launch_columns(gather_kernel, columns, count, next.count, stream, next);
}

void cuda_split(const Children& children, const Draw& first, const Draw& second, cudaStream_t stream) {
  launch(split_kernel, blocks_for(static_cast<std::size_t>(children.count), kColumnThreads), kColumnThreads, 0, stream,
         children, first, second);
}

}  // namespace lumigrad::density
