#include "common/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <mutex>
#include <new>
#include <vector>

namespace lumigrad {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr int kClasses = 64;
// Large blocks start on a huge page and ask for more: the kernels visit spheres in an order that is random in memory,
// and with small pages half of their time would go into address translation.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// In front of each block; as long as the alignment, so that the block behind it is aligned.
struct alignas(kAlignment) Header {
  std::size_t bytes;
  int size_class;
};

// Sizes are rounded up to one of eight steps per power of two, so that blocks of nearly equal size serve each other.
std::size_t rounded(std::size_t bytes) {
  if (bytes <= 4096) return 4096;
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

struct State {
  std::mutex mutex;
  std::vector<Header*> free[kClasses];
  std::uint64_t system_allocations = 0;
  std::uint64_t bytes = 0;
};

// How many free blocks of about this size are kept. A few are enough for any pipeline, and more would only be held for
// a burst that is over; but a small call has dozens of small arrays, which cost little to keep. When there are more the
// oldest goes: a class of sizes that nobody asks for any more must not keep out those in use.
std::size_t kept_blocks(std::size_t bytes) {
  constexpr std::size_t kFew = 16, kMany = 256, kCheap = std::size_t{32} << 20;
  return std::clamp(kCheap / bytes, kFew, kMany);
}

// Never destroyed: tensors may give blocks back while the interpreter is shutting down.
State& state() {
  static State* instance = new State;
  return *instance;
}

std::align_val_t alignment_of(std::size_t bytes) {
  return std::align_val_t(bytes >= 2 * kHugePage ? kHugePage : kAlignment);
}

// Huge pages only for what is used at once: a page is touched whole, also where it is spare.
void* system_memory(std::size_t bytes, std::size_t used) {
  void* memory = ::operator new(bytes, alignment_of(bytes));
  // A wish; without huge pages everything works, only slower.
  if (bytes >= 2 * kHugePage) madvise(memory, used / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

void release(State& s, Header* header) {
  s.bytes -= header->bytes;
  ::operator delete(header, alignment_of(sizeof(Header) + header->bytes));
}

}  // namespace

void* pool_take(std::size_t bytes, std::size_t spare) {
  const std::size_t wanted = rounded(bytes + spare);
  const int size_class = std::bit_width(wanted) - 1;
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto& blocks = s.free[size_class];
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    if ((*it)->bytes == wanted) {
      Header* header = *it;
      blocks.erase(std::next(it).base());
      return header + 1;
    }
  }
  auto* header = static_cast<Header*>(system_memory(sizeof(Header) + wanted, sizeof(Header) + bytes));
  header->bytes = wanted;
  header->size_class = size_class;
  s.system_allocations += 1;
  s.bytes += wanted;
  return header + 1;
}

void pool_give(void* block) noexcept {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto& blocks = s.free[header->size_class];
  blocks.push_back(header);
  if (blocks.size() > kept_blocks(header->bytes)) {
    release(s, blocks.front());
    blocks.erase(blocks.begin());
  }
}

std::uint64_t pool_system_allocations() {
  std::lock_guard lock(state().mutex);
  return state().system_allocations;
}

std::uint64_t pool_bytes() {
  std::lock_guard lock(state().mutex);
  return state().bytes;
}

void pool_trim() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  for (auto& blocks : s.free) {
    for (Header* header : blocks) release(s, header);
    blocks.clear();
  }
}

Buffer::~Buffer() { pool_give(data_); }

void* Buffer::ensure_bytes(std::size_t bytes) {
  if (bytes > capacity_ || data_ == nullptr) {
    pool_give(data_);
    data_ = nullptr;
    capacity_ = 0;
    // A quarter more than asked, so that slowly growing scenes do not reallocate at each call.
    const std::size_t spare = bytes / 4;
    data_ = pool_take(bytes, spare);
    capacity_ = bytes + spare;
  }
  return data_;
}

}  // namespace lumigrad
