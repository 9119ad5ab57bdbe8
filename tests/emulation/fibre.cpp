#include "fibre.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if defined(__x86_64__)
// Saves the registers that a callee must preserve, switches stacks, and returns on the other stack.
extern "C" void lumigrad_switch_stack(void** from, void* to);
asm(R"(
.text
.type lumigrad_switch_stack, @function
.hidden lumigrad_switch_stack
.globl lumigrad_switch_stack
lumigrad_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size lumigrad_switch_stack, .-lumigrad_switch_stack
)");
#endif

namespace lumigrad::emulation {
namespace {

#if defined(__SANITIZE_ADDRESS__)
// Removes the marks that an abandoned fibre left on its stack.
void forget(void* bottom, std::size_t size) { __asan_unpoison_memory_region(bottom, size); }
void leaving(Context& from, const Context& to, bool last) {
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.bottom, to.size);
}
void entered(Context& self, Context* came_from) {
  const void* bottom = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(self.fake_stack, &bottom, &size);
  if (came_from != nullptr) {
    came_from->bottom = bottom;
    came_from->size = size;
  }
}
#else
void forget(void*, std::size_t) {}
void leaving(Context&, const Context&, bool) {}
void entered(Context&, Context*) {}
#endif

}  // namespace

void prepare(Context& context, void* bottom, std::size_t size, void (*entry)()) {
  forget(bottom, size);
  context.fake_stack = nullptr;
  context.bottom = bottom;
  context.size = size;
#if defined(__x86_64__)
  // Lays out the stack as lumigrad_switch_stack leaves it: six registers, then the return address; above it a null in
  // place of a caller's address, which also gives `entry` the alignment it expects.
  auto top = (reinterpret_cast<std::uintptr_t>(bottom) + size) & ~std::uintptr_t{15};
  auto** slot = reinterpret_cast<void**>(top);
  *--slot = nullptr;
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;
  context.stack_pointer = slot;
#else
  getcontext(&context.machine);
  context.machine.uc_stack.ss_sp = bottom;
  context.machine.uc_stack.ss_size = size;
  context.machine.uc_link = nullptr;
  makecontext(&context.machine, entry, 0);
#endif
}

void switch_context(Context& from, Context& to, bool last) {
  leaving(from, to, last);
#if defined(__x86_64__)
  lumigrad_switch_stack(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.machine, &to.machine);
#endif
  entered(from, nullptr);
}

void arrived(Context& self, Context& came_from) { entered(self, &came_from); }

}  // namespace lumigrad::emulation
