// A pool of threads for the CPU loops.
#pragma once

#include <functional>

namespace lumigrad {

// Number of threads that loops are split over: LUMIGRAD_NUM_THREADS, else the processors this process may use.
int thread_count();
void set_thread_count(int count);

// Runs body(part) for part = 0 .. parts - 1, each once, on the pool and on the calling thread; returns when all are
// done. Parts are started in order. Calls from several threads take turns. `body` must not throw.
void parallel(int parts, const std::function<void(int)>& body);

}  // namespace lumigrad
