// A pool of threads for the CPU loops.
#pragma once

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <type_traits>

namespace lumigrad {

// A request, made on any thread, that the loops of another thread end early; and the time when these loops last checked
// it, which shows any thread whether they make progress.
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;

  void make() { made_.store(true, std::memory_order_relaxed); }
  bool is_made() const {
    asked_.store(Clock::now().time_since_epoch().count(), std::memory_order_relaxed);
    return made_.load(std::memory_order_relaxed);
  }
  // Seconds since the loops last checked, or since the request was created.
  double idle_seconds() const {
    const Clock::duration asked(asked_.load(std::memory_order_relaxed));
    return std::chrono::duration<double>(Clock::now().time_since_epoch() - asked).count();
  }

 private:
  std::atomic<bool> made_{false};
  mutable std::atomic<Clock::rep> asked_{Clock::now().time_since_epoch().count()};
};

// Thrown if loops ended early on request: their results are incomplete.
class Stopped : public std::runtime_error {
 public:
  Stopped() : std::runtime_error("the kernels were stopped before they were done") {}
};

// Makes the loops of this thread heed `request`, which must live as long as it is heeded; null: none. Returns the
// previous request.
const StopRequest* heed(const StopRequest* request);
// Whether the heeded request was made. A helper heeds the request of the thread for which it runs a part.
bool is_stopping();
// Throws Stopped if is_stopping(). Loops within a part call is_stopping() about every millisecond, e.g. before each
// tile.
void check_stop();

// The number of threads that loops are split over: LUMIGRAD_NUM_THREADS, or else the CPUs that this process may use.
int thread_count();
void set_thread_count(int count);

// Runs body(data, part) for part = 0 .. parts - 1, each once, on the pool and on the calling thread; returns when all
// parts are done. Parts are started in order. Calls from several threads take turns. `body` must not throw. Throws
// Stopped, once no part runs any more, if this thread heeds a request that was made.
void parallel(int parts, void (*body)(void* data, int part), void* data);

// Runs a callable in the same way. Internal linkage, since callers are compiled for different instruction sets, and the
// linker must not share this function between them.
template <class Body>
static inline __attribute__((always_inline)) void for_parts(int parts, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  parallel(parts, [](void* data, int part) { (*static_cast<Callable*>(data))(part); }, &body);
}

}  // namespace lumigrad
