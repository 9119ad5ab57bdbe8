#include "emulator.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>

#include "block.h"
#include "common/threads.h"

namespace lumigrad::emulation {
namespace {

std::atomic<std::uint64_t> seed{0};
std::atomic<int> workers{1 << 20};
std::atomic<bool> stubbed{false};

// The block that this system thread runs, which keeps its stacks for the next block.
Block& block_of_this_thread() {
  static thread_local std::unique_ptr<Block> block = std::make_unique<Block>();
  return *block;
}

// Visits 0 .. count - 1, each once, in an order that depends on the seed.
std::uint64_t shuffled(std::uint64_t index, std::uint64_t count, std::uint64_t order) {
  if (order == 0) return index;
  std::uint64_t stride = (order * 2654435761u + 1) % count;
  while (std::gcd(stride, count) != 1) ++stride;
  return static_cast<std::uint64_t>((static_cast<unsigned __int128>(index) * stride + order) % count);
}

}  // namespace

void set_seed(std::uint64_t value) { seed.store(value); }

void set_workers(int value) { workers.store(std::max(1, value)); }

void set_stubbed(bool value) { stubbed.store(value); }

bool is_stubbed() { return stubbed.load(); }

void run_grid(dim3 grid, dim3 block, std::size_t shared_bytes, const std::function<void()>& body) {
  if (is_stubbed()) return;
  const std::uint64_t count = std::uint64_t{grid.x} * grid.y * grid.z;
  const std::uint64_t order = seed.load();
  std::atomic<std::uint64_t> next{0};
  std::mutex mutex;
  std::exception_ptr error;
  auto work = [&](int) {
    try {
      Block& runner = block_of_this_thread();
      for (std::uint64_t i = next.fetch_add(1); i < count; i = next.fetch_add(1)) {
        const std::uint64_t index = shuffled(i, count, order);
        const uint3 place{static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
                          static_cast<unsigned>(index / grid.x / grid.y)};
        runner.run(grid, block, place, shared_bytes, order, body);
      }
    } catch (...) {
      next.store(count);
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  };
  const int limit = std::min(workers.load(), thread_count());
  for_parts(static_cast<int>(std::min<std::uint64_t>(count, static_cast<std::uint64_t>(limit))), work);
  if (error) std::rethrow_exception(error);
}

constinit thread_local std::uint64_t block_generation = 0;

std::uint64_t warp_operation(const Request& request) { return Block::running().warp_operation(request); }

int block_barrier(Vote vote, int predicate, const Site& site) {
  return Block::running().barrier(vote, predicate, site);
}

void fail(const std::string& what, const Site& site) { Block::running().fail(what, site); }

}  // namespace lumigrad::emulation
