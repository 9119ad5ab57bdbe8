// The index of a shared array, with its place in the source.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "emulator.h"

namespace lumigrad::emulation {

struct SharedIndex {
  template <class Integer>
  SharedIndex(Integer index, Site from = Site::current()) : value(static_cast<long long>(index)), site(from) {}

  // Fails unless the index is below `size`; fills the array at the first access of each block.
  void check(long long size, std::size_t bytes, void* values, unsigned long long& generation) const {
    if (value < 0 || value >= size) {
      fail("index " + std::to_string(value) + " of a shared array of " + std::to_string(size), site);
    }
    if (generation != block_generation) {
      generation = block_generation;
      std::memset(values, 0xFF, bytes);
    }
  }

  long long value;
  Site site;
};

}  // namespace lumigrad::emulation
