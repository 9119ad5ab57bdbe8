// Threads of calls, of the device and of the watchdog use one queue at the same time: `make sanitize-threads` runs this
// under ThreadSanitizer. It ends with 1, and a message, if a job is lost, ends twice or runs beside a job of another
// kind.
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/room.h"
#include "serving/queue/queue.h"

using namespace lumigrad;
using namespace lumigrad::serving;

namespace {

constexpr int kCallers = 6, kJobs = 400;
constexpr std::size_t kBytes = 100;

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "expected %s\n", what);
  std::exit(1);
}

// A batch runs during its lifetime.
class Alone {
 public:
  Alone() { require(++running == 1, "one batch at a time"); }
  ~Alone() { --running; }

 private:
  static inline std::atomic<int> running{0};
};

class Counted : public NativeJob {
 public:
  Counted(Demand demand, bool fails, bool is_small) : NativeJob(std::move(demand)), fails_(fails), is_small_(is_small) {
    room_bytes = kBytes;
  }

  bool runs_anywhere() const override { return is_small_; }

  void run(std::span<NativeJob* const> batch) override {
    const Alone alone;
    require(memory_room()->left() == static_cast<std::int64_t>(kBytes * batch.size()), "the room of the whole batch");
    for (NativeJob* each : batch) {
      auto& job = static_cast<Counted&>(*each);
      require(job.demand.tenant == demand.tenant && (batch.size() == 1 || job.demand.batch == demand.batch),
              "jobs of one tenant and batch together");
      ++job.runs;
      check_stop();
      if (job.fails_) throw std::runtime_error("as it was to");
    }
  }

  int runs = 0;

 private:
  bool fails_, is_small_;
};

Demand demand_of(std::mt19937& random) {
  const char* tenants[] = {"a", "b", "c"};
  Demand demand{.tenant = tenants[random() % 3], .priority = static_cast<int>(random() % kPriorities)};
  demand.kind = demand.batch = random() % 3;
  demand.bytes = kBytes;
  demand.fill = 0.25;
  demand.repeatable = random() % 2;
  demand.own = random() % 8 == 0;
  if (random() % 8 == 0) demand.deadline = Clock::now() + std::chrono::microseconds(random() % 2000);
  return demand;
}

// Makes one job after another, some of which another thread cancels.
void call(Queue& queue, int number) {
  std::mt19937 random(number);
  for (int i = 0; i < kJobs; ++i) {
    const bool is_native = random() % 2, fails = random() % 16 == 0;
    const auto native = is_native ? std::make_shared<Counted>(demand_of(random), fails, random() % 2) : nullptr;
    const std::shared_ptr<Job> job = is_native ? native : std::make_shared<Job>(demand_of(random));
    std::thread canceller;
    if (random() % 8 == 0) canceller = std::thread([&] { queue.cancel(*job); });
    const Outcome outcome = native ? queue.run(native) : queue.submit(job) ? queue.wait(*job) : job->outcome;
    if (canceller.joinable()) canceller.join();
    require(outcome != Outcome::kPending && outcome == job->outcome, "an outcome that stays");
    if (outcome == Outcome::kClosed) return;
    // The device's thread may still run a job whose device is lost.
    if (!native || outcome == Outcome::kLost) continue;
    require(native->runs <= 1, "a job that runs once");
    if (outcome == Outcome::kDone) require(native->runs == 1, "a job that has run");
    require((outcome == Outcome::kFailed) == (native->error != nullptr), "the exception of a job that failed");
  }
}

// The device's thread; some jobs of Python leave work to the device.
void serve(Queue& queue) {
  std::mt19937 random(99);
  for (;;) {
    Jobs batch;
    Queue::Next next = queue.take(batch, random() % 2);
    if (next == Queue::Next::kNone) next = queue.take(batch);
    if (next == Queue::Next::kEnd) return;
    if (next == Queue::Next::kSettle) {
      queue.settled();
      continue;
    }
    for (const auto& job : batch) require(!job->is_native(), "jobs of Python alone");
    std::optional<Alone> alone(std::in_place);
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
    if (random() % 4 == 0) queue.leave(7);
    alone.reset();
    queue.finish(1e-4, random() % 8 != 0);
  }
}

// Plays until all calls have ended; closes the queue and loses the device during the calls if `is_closed_early`.
void play(bool is_closed_early) {
  Queue queue({12, 6, 2});
  std::thread device([&] { serve(queue); });
  std::vector<std::thread> callers;
  for (int number = 0; number < kCallers; ++number) callers.emplace_back([&, number] { call(queue, number); });
  std::atomic<bool> is_over{false};
  std::thread watchdog([&] {
    while (!is_over) {
      queue.stop_overdue(1e-4);
      require(queue.held_seconds() >= 0 && queue.busy_seconds() >= 0 && queue.depth() <= 12, "sensible numbers");
      (void)(queue.predicted_bytes() + queue.is_busy());
      (void)queue.last_success();
      std::this_thread::yield();
    }
  });
  if (is_closed_early) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    queue.close();
    queue.lose();
  }
  for (std::thread& caller : callers) caller.join();
  is_over = true;
  watchdog.join();
  require(queue.depth() == 0 && (is_closed_early || queue.predicted_bytes() == 0), "an empty queue");
  queue.close();
  device.join();
  require(!queue.is_busy() && queue.predicted_bytes() == 0, "a queue at rest");
}

}  // namespace

int main() {
  // Ends the program if a thread waits forever.
  alarm(600);
  for (const bool is_closed_early : {false, true}) {
    play(is_closed_early);
    play(is_closed_early);
  }
  std::puts("ok");
}
