// A pool of threads for the CPU loops.
#pragma once

#include <type_traits>

namespace lumigrad {

// Number of threads that loops are split over: LUMIGRAD_NUM_THREADS, else the processors this process may use.
int thread_count();
void set_thread_count(int count);

// Runs body(data, part) for part = 0 .. parts - 1, each once, on the pool and on the calling thread; returns when all
// are done. Parts are started in order. Calls from several threads take turns. `body` must not throw.
void parallel(int parts, void (*body)(void* data, int part), void* data);

// The same for a callable. Internal linkage: the callers are compiled for different instruction sets, and the linker
// must not share this between them.
template <class Body>
static inline __attribute__((always_inline)) void for_parts(int parts, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  parallel(parts, [](void* data, int part) { (*static_cast<Callable*>(data))(part); }, &body);
}

}  // namespace lumigrad
