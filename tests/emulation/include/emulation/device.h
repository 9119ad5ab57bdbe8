// A thread's indices in its block and grid, and the operations that threads carry out together.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "emulation/vector_types.h"
#include "emulator.h"

extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;

constexpr int warpSize = 32;

namespace lumigrad::emulation {

template <class T>
std::uint64_t bits_of(T value) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "warp operations exchange 4 or 8 bytes");
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<std::uint32_t>(value);
  } else {
    return std::bit_cast<std::uint64_t>(value);
  }
}

template <class T>
T from_bits(std::uint64_t bits) {
  if constexpr (sizeof(T) == 4) {
    return std::bit_cast<T>(static_cast<std::uint32_t>(bits));
  } else {
    return std::bit_cast<T>(bits);
  }
}

}  // namespace lumigrad::emulation

// Default arguments, unlike macros, keep the names ordinary functions.
using EmulationSite = lumigrad::emulation::Site;

inline void __syncthreads(EmulationSite site = EmulationSite::current()) {
  lumigrad::emulation::block_barrier(lumigrad::emulation::Vote::none, 0, site);
}
inline int __syncthreads_or(int predicate, EmulationSite site = EmulationSite::current()) {
  return lumigrad::emulation::block_barrier(lumigrad::emulation::Vote::any, predicate, site);
}
inline int __syncthreads_and(int predicate, EmulationSite site = EmulationSite::current()) {
  return lumigrad::emulation::block_barrier(lumigrad::emulation::Vote::all, predicate, site);
}
inline int __syncthreads_count(int predicate, EmulationSite site = EmulationSite::current()) {
  return lumigrad::emulation::block_barrier(lumigrad::emulation::Vote::count, predicate, site);
}

inline void __syncwarp(unsigned mask = ~0u, EmulationSite site = EmulationSite::current()) {
  lumigrad::emulation::warp_operation({lumigrad::emulation::Operation::sync, mask, 0, 0, warpSize, site});
}

template <class T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<T>(warp_operation({Operation::shuffle, mask, bits_of(value), lane, width, site}));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<T>(
      warp_operation({Operation::shuffle_up, mask, bits_of(value), static_cast<int>(delta), width, site}));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<T>(
      warp_operation({Operation::shuffle_down, mask, bits_of(value), static_cast<int>(delta), width, site}));
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = warpSize,
                  EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<T>(warp_operation({Operation::shuffle_xor, mask, bits_of(value), lanes, width, site}));
}

inline unsigned __ballot_sync(unsigned mask, int predicate, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return static_cast<unsigned>(
      warp_operation({Operation::ballot, mask, static_cast<unsigned>(predicate), 0, warpSize, site}));
}
inline int __any_sync(unsigned mask, int predicate, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return static_cast<int>(warp_operation({Operation::any, mask, static_cast<unsigned>(predicate), 0, warpSize, site}));
}
inline int __all_sync(unsigned mask, int predicate, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return static_cast<int>(warp_operation({Operation::all, mask, static_cast<unsigned>(predicate), 0, warpSize, site}));
}
template <class T>
unsigned __match_any_sync(unsigned mask, T value, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return static_cast<unsigned>(warp_operation({Operation::match_any, mask, bits_of(value), 0, warpSize, site}));
}

template <class T>
T __reduce_add_sync(unsigned mask, T value, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<T>(warp_operation({Operation::reduce_add, mask, bits_of(value), 0, warpSize, site}));
}
inline int __reduce_min_sync(unsigned mask, int value, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<int>(warp_operation({Operation::reduce_min, mask, bits_of(value), 0, warpSize, site}));
}
inline int __reduce_max_sync(unsigned mask, int value, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<int>(warp_operation({Operation::reduce_max, mask, bits_of(value), 0, warpSize, site}));
}
inline unsigned __reduce_or_sync(unsigned mask, unsigned value, EmulationSite site = EmulationSite::current()) {
  using namespace lumigrad::emulation;
  return from_bits<unsigned>(warp_operation({Operation::reduce_or, mask, bits_of(value), 0, warpSize, site}));
}

// Blocks run on system threads that share memory coherently, and switching fibres is a point of order.
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
inline void __threadfence_block() { __atomic_signal_fence(__ATOMIC_SEQ_CST); }
