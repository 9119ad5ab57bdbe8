// The work queued on the streams of the emulated device. By default work runs when it is queued. Deferred work runs as
// late as CUDA may run it: when the host waits for it, and then only what was waited for. Code that reads a result or
// reuses a source too early, or lacks an event between streams, then gets other results.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

#include "emulation/runtime.h"

namespace lumigrad::emulation {

// A recording of an event. Its time is set when the stream gets there.
struct Recording {
  cudaStream_t stream = nullptr;
  std::chrono::steady_clock::time_point time;
  bool done = false;
};

using Work = std::function<void()>;

// Queues work, or runs it now. Throws the work's exceptions: Errors of kernels.
void queue_work(cudaStream_t stream, Work work);
std::shared_ptr<Recording> queue_recording(cudaStream_t stream);
// The stream's later work waits until `recording` is done.
void queue_wait(cudaStream_t stream, std::shared_ptr<Recording> recording);
// If deferred, host memory to be written is undefined until the copy is done, and host memory to be read must not
// change.
void queue_copy(cudaStream_t stream, void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind);
// Throws Error if queued work uses host memory in [block, block + bytes).
void check_unused(const void* block, std::size_t bytes);

// Returns the number of kernels, sorts, sums, copies and fills, but not recordings, queued since the last call.
int take_operations();

bool is_deferred();
void run_stream(cudaStream_t stream);
// Runs the work up to the recording, but not what was queued on its stream after it.
void run_until(const Recording& recording);
void run_all_streams();
// Returns how often the host has waited for work since the last call.
int take_waits();

}  // namespace lumigrad::emulation
