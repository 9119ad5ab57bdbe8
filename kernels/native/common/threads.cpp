#include "common/threads.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "common/alone.h"
#include "common/apart.h"

namespace lumigrad {
namespace {

constexpr int kMaxThreads = 256;
// A helper thread that has just finished polls this many times for more work before it sleeps: the stages of a call
// follow each other within microseconds, and waking a thread takes tens of microseconds.
constexpr int kSpins = 4000;

int processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

int initial_count() {
  const char* wanted = std::getenv("LUMIGRAD_NUM_THREADS");
  const int count = wanted != nullptr ? std::atoi(wanted) : 0;
  return std::clamp(count > 0 ? count : processors(), 1, kMaxThreads);
}

// The request that this thread heeds; helpers heed that of the thread they work for.
thread_local const StopRequest* heeded = nullptr;
thread_local bool is_apart = false;

thread_local int alone = 0;

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Whether helpers may join the current job, and how many work on it, in one atomic word. A helper that comes after the
// job is done cannot join, and the caller never waits for a helper that has not started, which may take tens of
// milliseconds if another process occupies its CPU.
class Door {
 public:
  void open(int places) { state_.store(std::int64_t{places} << kShift, std::memory_order_release); }
  // Returns true if the caller has joined; it must then call `leave`.
  bool enter() {
    std::int64_t state = state_.load(std::memory_order_acquire);
    while (state >> kShift > 0) {
      constexpr std::int64_t kPlaceToInside = 1 - (std::int64_t{1} << kShift);
      if (state_.compare_exchange_weak(state, state + kPlaceToInside, std::memory_order_acquire)) return true;
    }
    return false;
  }
  void leave() {
    state_.fetch_sub(1, std::memory_order_release);
    state_.notify_one();
  }
  // Keeps further helpers from joining, and waits until all have left.
  void close() {
    constexpr std::int64_t kInside = (std::int64_t{1} << kShift) - 1;
    std::int64_t inside = state_.fetch_and(kInside, std::memory_order_acquire) & kInside;
    for (int i = 0; inside != 0; ++i) {
      if (i < kSpins) {
        relax();
      } else {
        state_.wait(inside, std::memory_order_acquire);
      }
      inside = state_.load(std::memory_order_acquire);
    }
  }

 private:
  static constexpr int kShift = 32;
  std::atomic<std::int64_t> state_{0};
};

class Pool {
 public:
  ~Pool() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      generation_.fetch_add(1, std::memory_order_release);
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(int parts, int width, void (*body)(void*, int), void* data) {
    std::lock_guard turn(turn_);
    const int helpers = std::min(width, parts) - 1;
    while (static_cast<int>(threads_.size()) < helpers) {
      threads_.emplace_back([this, seen = generation_.load()] { serve(seen); });
    }
    body_ = body;
    data_ = data;
    parts_ = parts;
    request_ = heeded;
    next_.store(0, std::memory_order_relaxed);
    door_.open(helpers);
    {
      std::lock_guard lock(mutex_);
      generation_.fetch_add(1, std::memory_order_release);
    }
    if (sleeping_.load(std::memory_order_acquire) > 0) wake_.notify_all();
    work();
    door_.close();
  }

 private:
  void work() {
    for (int part = next_.fetch_add(1); part < parts_ && !is_stopping(); part = next_.fetch_add(1)) {
      body_(data_, part);
    }
  }

  void serve(std::uint64_t seen) {
    while (true) {
      for (int i = 0; i < kSpins && generation_.load(std::memory_order_acquire) == seen; ++i) relax();
      if (generation_.load(std::memory_order_acquire) == seen) sleep(seen);
      seen = generation_.load(std::memory_order_acquire);
      if (stop_) return;
      if (!door_.enter()) continue;
      heed(request_);
      work();
      heed(nullptr);
      door_.leave();
    }
  }

  void sleep(std::uint64_t seen) {
    std::unique_lock lock(mutex_);
    sleeping_.fetch_add(1, std::memory_order_release);
    wake_.wait(lock, [&] { return generation_.load(std::memory_order_acquire) != seen; });
    sleeping_.fetch_sub(1, std::memory_order_release);
  }

  std::mutex turn_, mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> threads_;
  void (*body_)(void*, int) = nullptr;
  void* data_ = nullptr;
  int parts_ = 0;
  const StopRequest* request_ = nullptr;
  bool stop_ = false;
  Door door_;
  std::atomic<int> next_{0}, sleeping_{0};
  std::atomic<std::uint64_t> generation_{0};
};

std::atomic<int>& count() {
  static std::atomic<int> value{initial_count()};
  return value;
}

}  // namespace

int thread_count() { return alone > 0 ? 1 : count().load(); }

Alone::Alone() { ++alone; }

Alone::~Alone() { --alone; }

void set_thread_count(int wanted) { count().store(std::clamp(wanted, 1, kMaxThreads)); }

const StopRequest* heed(const StopRequest* request) { return std::exchange(heeded, request); }

bool is_stopping() { return heeded != nullptr && heeded->is_made(); }

void check_stop() {
  if (is_stopping()) throw Stopped();
}

Apart::Apart() : before_(std::exchange(is_apart, true)) {}

Apart::~Apart() { is_apart = before_; }

void parallel(int parts, void (*body)(void*, int), void* data) {
  const int width = std::min(thread_count(), parts);
  if (width <= 1) {
    for (int part = 0; part < parts && !is_stopping(); ++part) body(data, part);
  } else {
    static Pool shared, apart;
    (is_apart ? apart : shared).run(parts, width, body, data);
  }
  check_stop();
}

}  // namespace lumigrad
