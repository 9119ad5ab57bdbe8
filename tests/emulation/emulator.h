// Runs CUDA kernels on the host, a block at a time: every thread of a block is a fibre, which runs until it waits for
// others, at a barrier or in a warp operation. Blocks are spread over the threads of the CPU loops. Behaviour that
// hardware leaves undefined (barriers that part of a block misses, warp operations whose lanes disagree, shared memory
// out of range) throws an Error that says where.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>
#include <stdexcept>
#include <string>

#include "emulation/vector_types.h"

namespace lumigrad::emulation {

using Site = std::source_location;

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Order of threads between the points where they wait for each other: 0 runs warps and lanes in ascending order; any
// other seed shuffles blocks, warps and lanes, so that kernels that lack a barrier give other results.
void set_seed(std::uint64_t seed);
// Number of blocks that run at the same time; 1 makes the order of atomic operations repeatable.
void set_workers(int workers);

// Has kernels do nothing, and new memory of the device be 0, so that calls consist of the host's part alone.
void set_stubbed(bool value);
bool is_stubbed();
// Calls `body` once for each thread of the grid, with threadIdx and its like set. Throws Error.
void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body);

enum class Operation {
  sync,
  shuffle,
  shuffle_up,
  shuffle_down,
  shuffle_xor,
  ballot,
  any,
  all,
  match_any,
  reduce_add,
  reduce_min,
  reduce_max,
  reduce_or,
};

enum class Vote { none, any, all, count };

// A lane's arguments of a warp operation.
struct Request {
  Operation operation;
  std::uint32_t mask;
  std::uint64_t value;
  int parameter;
  int width;
  Site site;
};

// Called by threads of a running kernel.
std::uint64_t warp_operation(const Request& request);
int block_barrier(Vote vote, int predicate, const Site& site);
// Throws the Error of a thread that broke a rule.
[[noreturn]] void fail(const std::string& what, const Site& site);
// Shared memory of the launch's size.
unsigned char* dynamic_shared();
// Changes with every block that a system thread runs, so that shared memory is distinguished from the last block's.
extern constinit thread_local std::uint64_t block_generation;

// The name of an operation in CUDA.
const char* name_of(Operation operation);
// Computes the results of `lanes`, all of which have arrived. `requests` and `results` are indexed by lane.
void complete(const Request* const (&requests)[32], std::uint32_t lanes, std::uint64_t (&results)[32]);

}  // namespace lumigrad::emulation
