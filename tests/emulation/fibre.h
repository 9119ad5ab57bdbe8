// Fibres: functions with stacks of their own that hand over to each other within a system thread.
#pragma once

#include <cstddef>

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

namespace lumigrad::emulation {

// A point to continue from, in a fibre that has handed over, or in the scheduler while a fibre runs.
struct Context {
#if defined(__x86_64__)
  void* stack_pointer = nullptr;
#else
  ucontext_t machine;
#endif
  // Data that AddressSanitizer needs about the stack to switch to.
  void* fake_stack = nullptr;
  const void* bottom = nullptr;
  std::size_t size = 0;
};

// Prepares `context` to call `entry`, which never returns, on the given stack.
void prepare(Context& context, void* bottom, std::size_t size, void (*entry)());

// Continues at `to`; returns when something switches back to `from`. `last` says that `from` will never be continued.
void switch_context(Context& from, Context& to, bool last = false);

// Completes the switch that started a fibre, as the first thing that it does.
void arrived(Context& self, Context& came_from);

}  // namespace lumigrad::emulation
