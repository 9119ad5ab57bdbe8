// A block of a running kernel: its threads, what they wait for, and the order in which they take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "emulator.h"
#include "fibre.h"

namespace lumigrad::emulation {

class Block {
 public:
  static constexpr int kMaxThreads = 1024;
  // The shared memory that a launch may ask for without an attribute, as on hardware.
  static constexpr std::size_t kMaxShared = 48 * 1024;

  Block();
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  // The block that the calling system thread runs. Throws Error outside of a kernel.
  static Block& running();

  void run(dim3 grid, dim3 block, uint3 place, std::size_t shared_bytes, std::uint64_t order,
           const std::function<void()>& body);

  std::uint64_t warp_operation(const Request& request);
  int barrier(Vote vote, int predicate, const Site& site);
  [[noreturn]] void fail(const std::string& what, const Site& site) const;

 private:
  enum class State { fresh, ready, in_warp, at_barrier, done };

  struct Thread {
    State state = State::fresh;
    Context context;
    uint3 index{};
    char* stack = nullptr;
    Request request{};
    std::uint64_t result = 0;
    Vote vote = Vote::none;
  };

  // Lanes, as bits: `ready` can run, `waiting` are in a warp operation, `live` have not returned.
  struct Warp {
    std::uint32_t ready = 0, waiting = 0, live = 0;
  };

  static void fibre();
  void number(dim3 shape);
  void start(int threads, std::size_t shared_bytes);
  void take_turns();
  bool run_warp(int warp);
  int next_of_round();
  void resume(int thread);
  Context& entered(int thread);
  void leave(Thread& self);
  void finish(int thread);
  void wait(State state);
  bool try_complete(int warp, std::uint32_t mask);
  void finish_barrier(const Site& site);
  void check_shared(std::size_t shared_bytes) const;
  std::string name() const;
  std::string who(const std::vector<int>& threads) const;
  std::string waiting_for(int thread) const;
  std::string deadlock() const;
  std::uint64_t random();

  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::vector<char*> free_stacks_;
  char* stacks_ = nullptr;
  Context scheduler_;
  const std::function<void()>* body_ = nullptr;
  std::exception_ptr error_;
  dim3 shape_{0, 0, 0};
  uint3 place_{};
  // The context that handed over last; the lanes of the warp at `first_` that still have to run in this round.
  Context* came_from_ = nullptr;
  std::uint32_t round_ = 0;
  int first_ = 0;
  int count_ = 0, live_ = 0, at_barrier_ = 0, votes_ = 0, current_ = 0;
  std::uint64_t generation_ = 0, order_ = 0, random_ = 0;
};

}  // namespace lumigrad::emulation
