#include "streams.h"

#include <malloc.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "emulator.h"

namespace lumigrad::emulation {
namespace {

struct Item {
  Work work;
  // The item waits for this recording, if not null.
  std::shared_ptr<Recording> awaited;
  // The host memory that the work uses.
  const char* host = nullptr;
  std::size_t bytes = 0;
};

struct State {
  // Also held while work runs: one thread of the host at a time.
  std::recursive_mutex mutex;
  std::map<cudaStream_t, std::deque<Item>> queues;
};

// Never destroyed, since tensors may free memory while the interpreter is shutting down.
State& state() {
  static State* instance = new State;
  return *instance;
}

std::atomic<bool> deferred{false};
std::atomic<int> waits{0}, idle_waits{0}, operations{0};

bool is_idle() {
  for (const auto& [stream, queue] : state().queues) {
    if (!queue.empty()) return false;
  }
  return true;
}

std::size_t queued() {
  std::size_t items = 0;
  for (const auto& [stream, queue] : state().queues) items += queue.size();
  return items;
}

// Runs a wait; counts it if it ran any work, and counts it as idle if no work is left.
template <class Run>
void wait(const Run& run) {
  const std::size_t before = queued();
  const bool was_idle = is_idle();
  run();
  if (queued() != before) ++waits;
  if (!was_idle && is_idle()) ++idle_waits;
}

void run_first(std::deque<Item>& queue);

// Runs the streams as far as the recording requires.
void reach(const Recording& recording) {
  std::deque<Item>& queue = state().queues[recording.stream];
  while (!recording.done && !queue.empty()) run_first(queue);
}

void run_first(std::deque<Item>& queue) {
  if (queue.front().awaited) reach(*queue.front().awaited);
  const Item item = std::move(queue.front());
  queue.pop_front();
  try {
    if (item.work) item.work();
  } catch (...) {
    // Nothing works after a kernel has failed, as on a device; the next test begins anew.
    for (auto& [stream, rest] : state().queues) rest.clear();
    throw;
  }
}

void put(cudaStream_t stream, Item item) {
  std::lock_guard lock(state().mutex);
  state().queues[stream].push_back(std::move(item));
}

// Runs work now, or queues it.
void run_or_put(cudaStream_t stream, Work work) {
  if (deferred.load()) return put(stream, {std::move(work), nullptr});
  work();
}

}  // namespace

bool is_deferred() { return deferred.load(); }

void set_deferred(bool value) {
  run_all_streams();
  // Freed memory is overwritten, so that work which still refers to it reads other values.
  mallopt(M_PERTURB, value ? 0x5A : 0);
  deferred.store(value);
}

void queue_work(cudaStream_t stream, Work work) {
  ++operations;
  run_or_put(stream, std::move(work));
}

std::shared_ptr<Recording> queue_recording(cudaStream_t stream) {
  auto recording = std::make_shared<Recording>(stream);
  run_or_put(stream, [recording] {
    recording->time = std::chrono::steady_clock::now();
    recording->done = true;
  });
  return recording;
}

void queue_wait(cudaStream_t stream, std::shared_ptr<Recording> recording) {
  if (is_deferred()) put(stream, {{}, std::move(recording)});
}

void queue_copy(cudaStream_t stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  ++operations;
  Work work = [=] { std::memcpy(to, from, bytes); };
  if (!is_deferred()) return work();
  // The target is undefined until the copy is done.
  if (kind == cudaMemcpyDeviceToHost) std::memset(to, 0xFF, bytes);
  const void* host = kind == cudaMemcpyDeviceToHost ? to : kind == cudaMemcpyHostToDevice ? from : nullptr;
  put(stream, {std::move(work), nullptr, static_cast<const char*>(host), bytes});
}

void check_unused(const void* block, std::size_t bytes) {
  std::lock_guard lock(state().mutex);
  const auto* begin = static_cast<const char*>(block);
  for (const auto& [stream, queue] : state().queues) {
    for (const Item& item : queue) {
      if (item.host == nullptr || item.host + item.bytes <= begin || begin + bytes <= item.host) continue;
      throw Error("host memory was freed before a copy that uses it was done");
    }
  }
}

void run_until(const Recording& recording) {
  std::lock_guard lock(state().mutex);
  wait([&] { reach(recording); });
}

void run_stream(cudaStream_t stream) {
  std::lock_guard lock(state().mutex);
  std::deque<Item>& queue = state().queues[stream];
  wait([&] {
    while (!queue.empty()) run_first(queue);
  });
}

void run_all_streams() {
  std::lock_guard lock(state().mutex);
  wait([] {
    for (auto& [stream, queue] : state().queues) {
      while (!queue.empty()) run_first(queue);
    }
  });
}

int take_waits() { return waits.exchange(0); }

int take_operations() { return operations.exchange(0); }

int take_idle_waits() { return idle_waits.exchange(0); }

}  // namespace lumigrad::emulation
