// Unpacks blocks of rows: a block of threads per `kRows` rows of a block of rows.
#include <algorithm>

#include "common/cuda/launch.h"
#include "gaussians/cuda/engine.h"
#include "gaussians/math/packed_row.h"

namespace lumigrad::gaussians {
namespace {

constexpr unsigned kThreads = 256;
constexpr int kRows = 256;
// Blocks of rows per launch, few enough for a kernel's arguments.
constexpr int kBlocks = 32;

template <class Source>
struct Block {
  Source from;
  int64_t count, begin;
};

template <class Source>
struct Blocks {
  Block<Source> blocks[kBlocks];
};

// The rows of a block of threads.
struct Rows {
  int64_t first;
  unsigned count;

  __device__ explicit Rows(int64_t of_block) : first(int64_t{blockIdx.x} * kRows), count(0) {
    const int64_t left = of_block - first;
    if (left > 0) count = static_cast<unsigned>(left < kRows ? left : kRows);
  }

  // Calls body(row, index) for each of `kWidth` items of each row, with a thread per item, so that neighbours in memory
  // are read and written together.
  template <int kWidth, class Body>
  __device__ void each(const Body& body) const {
    for (unsigned i = threadIdx.x; i < kWidth * count; i += kThreads) body(first + i / kWidth, i % kWidth);
  }
};

// The bits from `at` on, at least 33 of them. May read the word behind a row's words, where scales lie.
__device__ inline uint64_t bits_from(const uint32_t* words, int at) {
  const uint32_t* word = words + at / 32;
  return (uint64_t{word[1]} << 32 | word[0]) >> (at % 32);
}

// Unpacks an item of a row's colours: the constant harmonic, or another one.
template <class Bits>
__device__ inline void unpack_color(const PackedParts& from, int64_t row, int item, float* color) {
  if (item == 0) {
    for (int c = 0; c < kColors; ++c) color[c] = from_half(from.constant[kColors * row + c]) * from.factors[1];
    return;
  }
  const uint32_t* words = from.words + from.row_words * row;
  const uint64_t codes = bits_from(words, kStepsAt);
  float steps[3];
  for (int p = 0; p < 3; ++p) {
    steps[p] = step_of(codes >> (kStepBits * p) & ((1 << kStepBits) - 1), from.factors[2 + p]);
  }
  unpack_harmonic<Bits>(bits_from(words, kHarmonicsAt + Bits::kAll * (item - 1)), steps, color);
}

template <int kCoefficients>
__global__ void __launch_bounds__(kThreads)
    unpack_kernel(const __grid_constant__ Blocks<PackedParts> all, const UnpackedRows to) {
  const Block<PackedParts>& block = all.blocks[blockIdx.y];
  const PackedParts& from = block.from;
  const Rows rows(block.count);
  rows.each<3>([&](int64_t row, unsigned axis) {
    const int64_t number = 3 * row + axis;
    to.means[3 * block.begin + number] = from.means[number];
    to.scales[3 * block.begin + number] = from_half(from.scales[number]) * from.factors[0];
  });
  rows.each<1>([&](int64_t row, unsigned) {
    const uint32_t* words = from.words + from.row_words * row;
    const uint64_t bits = uint64_t{words[1]} << 32 | words[0];
    unpack_direction(bits, to.quats + 4 * (block.begin + row));
    to.opacities[block.begin + row] = unpack_opacity(bits);
  });
  if (to.sh == nullptr) return;
  rows.each<kCoefficients>([&](int64_t row, unsigned item) {
    float* color = to.sh + kColors * (kCoefficients * (block.begin + row) + item);
    unpack_color<PlanesOf<kCoefficients>>(from, row, static_cast<int>(item), color);
  });
}

__global__ void __launch_bounds__(kThreads)
    copy_kernel(const __grid_constant__ Blocks<const float*> all, const UnpackedRows to) {
  const Block<const float*>& block = all.blocks[blockIdx.y];
  const Rows rows(block.count);
  const float* from = block.from;
  const auto copy = [&](float* part, int width) {
    const int64_t first = width * rows.first;
    for (unsigned i = threadIdx.x; i < width * rows.count; i += kThreads) {
      part[width * block.begin + first + i] = from[first + i];
    }
    from += width * block.count;
  };
  copy(to.means, 3);
  copy(to.quats, 4);
  copy(to.scales, 3);
  copy(to.opacities, 1);
  if (to.sh != nullptr) copy(to.sh, kColors * to.coefficients);
}

template <class Source>
using Kernel = void (*)(Blocks<Source>, UnpackedRows);

Kernel<PackedParts> kernel_for(int coefficients) {
  switch (coefficients) {
    case 4:
      return &unpack_kernel<4>;
    case 9:
      return &unpack_kernel<9>;
    case 16:
      return &unpack_kernel<16>;
    case 25:
      return &unpack_kernel<25>;
    default:
      return &unpack_kernel<1>;
  }
}

// Queues a kernel for all blocks, whose sources are source_of(block).
template <class Source, class SourceOf>
void launch_blocks(Kernel<Source> kernel, const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to,
                   cudaStream_t stream, const SourceOf& source_of) {
  for (std::size_t done = 0; done < blocks.size(); done += kBlocks) {
    const std::size_t many = std::min<std::size_t>(blocks.size() - done, kBlocks);
    Blocks<Source> some{};
    int64_t longest = 0;
    for (std::size_t i = 0; i < many; ++i) {
      const RowBlock& block = blocks[done + i];
      some.blocks[i] = {source_of(block), block.count, begin};
      begin += block.count;
      longest = std::max(longest, block.count);
    }
    const dim3 grid(blocks_for(static_cast<std::size_t>(longest), kRows), static_cast<unsigned>(many));
    launch(kernel, grid, kThreads, 0, stream, some, to);
  }
}

}  // namespace

void cuda_unpack(const std::vector<RowBlock>& blocks, int64_t begin, const UnpackedRows& to, cudaStream_t stream) {
  if (blocks.empty()) return;
  if (blocks[0].packed != nullptr) {
    launch_blocks<PackedParts>(kernel_for(to.sh == nullptr ? 1 : to.coefficients), blocks, begin, to, stream, parts_of);
  } else {
    launch_blocks<const float*>(&copy_kernel, blocks, begin, to, stream,
                                [](const RowBlock& block) { return block.values; });
  }
}

}  // namespace lumigrad::gaussians
