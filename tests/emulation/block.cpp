#include "block.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

#include "emulation/device.h"

constinit thread_local uint3 threadIdx{};
constinit thread_local uint3 blockIdx{};
constinit thread_local dim3 blockDim{};
constinit thread_local dim3 gridDim{};

namespace lumigrad::emulation {
namespace {

constexpr std::size_t kStack = 128 * 1024;
// The distance of stacks is no power of two, or their tops would share a few lines of the cache.
constexpr std::size_t kStackStride = kStack + 64 * 17;
// An additional stack in front, into which the first may overflow.
constexpr std::size_t kStacks = kStackStride * (Block::kMaxThreads + 1);
constexpr std::uint64_t kCanary = 0x5AFE57ACC0FFEE11;
constexpr unsigned char kGuard = 0xA5;
constexpr std::size_t kGuardBytes = 1024;

// A guard follows the part that a launch asked for.
alignas(128) thread_local unsigned char dynamic_shared_memory[Block::kMaxShared + kGuardBytes];

thread_local Block* running_block = nullptr;

bool same_site(const Site& a, const Site& b) {
  return a.line() == b.line() && a.column() == b.column() &&
         (a.file_name() == b.file_name() || std::strcmp(a.file_name(), b.file_name()) == 0);
}

}  // namespace

Block::Block() : threads_(kMaxThreads), warps_(kMaxThreads / 32) {
  void* memory = mmap(nullptr, kStacks, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  stacks_ = static_cast<char*>(memory);
}

Block::~Block() { munmap(stacks_, kStacks); }

unsigned char* dynamic_shared() { return dynamic_shared_memory; }

Block& Block::running() {
  if (running_block == nullptr) throw Error("a device function was called outside of a kernel");
  return *running_block;
}

std::uint64_t Block::random() {
  random_ = random_ * 6364136223846793005u + 1442695040888963407u;
  return random_ >> 33;
}

void Block::start(int threads, std::size_t shared_bytes) {
  count_ = live_ = threads;
  at_barrier_ = votes_ = 0;
  round_ = 0;
  error_ = nullptr;
  block_generation = ++generation_;
  free_stacks_.clear();
  for (int i = kMaxThreads - 1; i >= 0; --i) free_stacks_.push_back(stacks_ + (i + 1) * kStackStride);
  for (int i = 0; i < threads; ++i) threads_[i].state = State::fresh;
  for (int first = 0; first < threads; first += 32) {
    const int lanes = std::min(32, threads - first);
    const std::uint32_t all = lanes == 32 ? ~0u : (1u << lanes) - 1;
    warps_[first / 32] = {all, 0, all};
  }
  // Shared memory is undefined when a block starts: NaN as float, -1 as int.
  if (shared_bytes == 0) return;
  std::memset(dynamic_shared_memory, 0xFF, shared_bytes);
  std::memset(dynamic_shared_memory + shared_bytes, kGuard, kGuardBytes);
}

void Block::number(dim3 shape) {
  if (shape.x == shape_.x && shape.y == shape_.y && shape.z == shape_.z) return;
  shape_ = shape;
  for (unsigned i = 0; i < shape.x * shape.y * shape.z; ++i) {
    threads_[i].index = {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
  }
}

void Block::run(dim3 grid, dim3 block, uint3 place, std::size_t shared_bytes, std::uint64_t order,
                const std::function<void()>& body) {
  number(block);
  place_ = place;
  order_ = order;
  random_ = order + place.x + 977 * place.y;
  body_ = &body;
  gridDim = grid;
  blockDim = block;
  blockIdx = place;
  start(static_cast<int>(block.x * block.y * block.z), shared_bytes);
  running_block = this;
  try {
    take_turns();
    check_shared(shared_bytes);
  } catch (...) {
    running_block = nullptr;
    throw;
  }
  running_block = nullptr;
}

void Block::take_turns() {
  const int warps = (count_ + 31) / 32;
  while (live_ > 0) {
    bool progress = false;
    const int first = order_ == 0 ? 0 : static_cast<int>(random() % warps);
    for (int i = 0; i < warps; ++i) progress |= run_warp((first + i) % warps);
    if (!progress) throw Error(deadlock());
  }
}

bool Block::run_warp(int warp) {
  bool progress = false;
  while (warps_[warp].ready != 0) {
    progress = true;
    if (order_ == 0) {
      // The lanes hand over to each other; the last lane returns here.
      first_ = warp * 32;
      round_ = warps_[warp].ready;
      resume(next_of_round());
    } else {
      // Only one round, so that other warps run in between, with lanes by an odd stride from a random one.
      const auto stride = static_cast<int>(random() % 16 * 2 + 1), first = static_cast<int>(random() % 32);
      const std::uint32_t ready = warps_[warp].ready;
      for (int i = 0; i < 32; ++i) {
        const int lane = (first + i * stride) % 32;
        if ((ready >> lane & 1) != 0) resume(warp * 32 + lane);
      }
      break;
    }
  }
  return progress;
}

int Block::next_of_round() {
  const int lane = std::countr_zero(round_);
  round_ &= round_ - 1;
  return first_ + lane;
}

void Block::resume(int thread) {
  came_from_ = &scheduler_;
  switch_context(scheduler_, entered(thread));
  if (error_) std::rethrow_exception(error_);
}

// Makes a thread the current one; returns where it continues.
Context& Block::entered(int thread) {
  Thread& self = threads_[thread];
  current_ = thread;
  threadIdx = self.index;
  warps_[thread / 32].ready &= ~(1u << thread % 32);
  if (self.state == State::fresh) {
    self.stack = free_stacks_.back();
    free_stacks_.pop_back();
    *reinterpret_cast<std::uint64_t*>(self.stack) = kCanary;
    prepare(self.context, self.stack, kStack, &Block::fibre);
  }
  return self.context;
}

// Continues with the next lane of the round, or with the scheduler.
void Block::leave(Thread& self) {
  const bool is_done = self.state == State::done;
  try {
    if (*reinterpret_cast<std::uint64_t*>(self.stack) != kCanary)
      fail("a thread overflowed its stack", Site::current());
    if (is_done) finish(current_);
  } catch (...) {
    error_ = std::current_exception();
  }
  came_from_ = &self.context;
  Context& next = round_ == 0 || error_ ? scheduler_ : entered(next_of_round());
  // This stack is in use until the next thread has another.
  if (is_done) free_stacks_.push_back(self.stack);
  switch_context(self.context, next, is_done);
}

void Block::finish(int thread) {
  Warp& warp = warps_[thread / 32];
  warp.live &= ~(1u << thread % 32);
  --live_;
  // A warp operation does not wait for lanes that have returned.
  if (warp.waiting != 0) {
    const int other = thread / 32 * 32 + std::countr_zero(warp.waiting);
    try_complete(thread / 32, threads_[other].request.mask);
  }
}

void Block::fibre() {
  Block& block = *running_block;
  Thread& self = block.threads_[block.current_];
  arrived(self.context, *block.came_from_);
  try {
    (*block.body_)();
  } catch (...) {
    block.error_ = std::current_exception();
  }
  self.state = State::done;
  block.leave(self);
}

void Block::wait(State state) {
  Thread& self = threads_[current_];
  self.state = state;
  leave(self);
}

std::uint64_t Block::warp_operation(const Request& request) {
  const int thread = current_;
  Thread& self = threads_[thread];
  Warp& warp = warps_[thread / 32];
  const std::uint32_t bit = 1u << thread % 32;
  self.request = request;
  if ((request.mask & bit) == 0) {
    fail(std::string(name_of(request.operation)) + ": the calling lane " + std::to_string(thread % 32) +
             " is not in its own mask",
         request.site);
  }
  warp.waiting |= bit;
  if (!try_complete(thread / 32, request.mask)) {
    wait(State::in_warp);
  } else {
    warp.ready &= ~bit;
  }
  return self.result;
}

// Completes a warp operation if every lane of its mask that has not returned waits in it.
bool Block::try_complete(int index, std::uint32_t mask) {
  Warp& warp = warps_[index];
  const std::uint32_t lanes = mask & warp.live;
  if ((lanes & ~warp.waiting) != 0 || lanes == 0) return false;
  const Request* requests[32] = {};
  std::uint64_t results[32];
  const Request& first = threads_[index * 32 + std::countr_zero(lanes)].request;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    const Request& request = threads_[index * 32 + lane].request;
    if (request.mask != mask || request.operation != first.operation || !same_site(request.site, first.site)) {
      return false;
    }
    requests[lane] = &request;
  }
  complete(requests, lanes, results);
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    Thread& thread = threads_[index * 32 + std::countr_zero(rest)];
    thread.result = results[std::countr_zero(rest)];
    thread.state = State::ready;
  }
  warp.waiting &= ~lanes;
  warp.ready |= lanes;
  return true;
}

int Block::barrier(Vote vote, int predicate, const Site& site) {
  Thread& self = threads_[current_];
  self.request.site = site;
  self.vote = vote;
  votes_ += predicate != 0;
  ++at_barrier_;
  if (at_barrier_ == live_) {
    const int thread = current_;
    self.state = State::at_barrier;
    finish_barrier(site);
    warps_[thread / 32].ready &= ~(1u << thread % 32);
  } else {
    wait(State::at_barrier);
  }
  return static_cast<int>(self.result);
}

void Block::finish_barrier(const Site& site) {
  if (live_ != count_) throw Error(deadlock());
  for (int i = 0; i < count_; ++i) {
    if (!same_site(threads_[i].request.site, site)) throw Error(deadlock());
  }
  for (int i = 0; i < count_; ++i) {
    Thread& thread = threads_[i];
    const Vote vote = thread.vote;
    thread.result = static_cast<std::uint64_t>(vote == Vote::any   ? votes_ != 0
                                               : vote == Vote::all ? votes_ == count_
                                                                   : votes_);
    thread.state = State::ready;
  }
  for (int first = 0; first < count_; first += 32) warps_[first / 32].ready = warps_[first / 32].live;
  at_barrier_ = votes_ = 0;
}

void Block::check_shared(std::size_t shared_bytes) const {
  const unsigned char* guard = dynamic_shared_memory + shared_bytes;
  if (shared_bytes == 0 || std::all_of(guard, guard + kGuardBytes, [](unsigned char byte) { return byte == kGuard; }))
    return;
  throw Error(name() + ": wrote behind the " + std::to_string(shared_bytes) +
              " bytes of dynamic shared memory that the launch asked for");
}

}  // namespace lumigrad::emulation
