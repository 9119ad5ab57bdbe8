#include "common/pool.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "common/room.h"

namespace lumigrad {
namespace {

constexpr std::size_t kAlignment = 64;
constexpr int kClasses = 64;
// Huge blocks are aligned to huge pages and request them: the kernels access spheres in random order, and with small
// pages half of their time would be spent on address translation.
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// A multiple of every machine's page size.
constexpr std::size_t kPage = std::size_t{64} << 10;
// Blocks from this size on are separate mappings. malloc uses mappings only until it has freed some; then it allocates
// from its heaps, which return memory to the system only at their ends.
constexpr std::size_t kMapped = std::size_t{128} << 10;

using Clock = std::chrono::steady_clock;
// Blocks unused for this long are returned: they served a burst of calls that is over. Otherwise a process would keep
// as many blocks of each size as were ever in use at once, and grow for hours.
constexpr auto kIdle = std::chrono::seconds(10);
// The interval between searches for unused blocks.
constexpr auto kLook = std::chrono::seconds(1);

// The header before each block, padded to the alignment so that the block is aligned.
struct alignas(kAlignment) Header {
  std::size_t bytes;
  int size_class;
  Clock::time_point given;
};

// Sizes are rounded up to one of eight steps per power of two, so that blocks can be reused for nearly equal sizes.
std::size_t rounded(std::size_t bytes) {
  if (bytes <= 4096) return 4096;
  const std::size_t step = std::bit_floor(bytes) / 8;
  return (bytes + step - 1) / step * step;
}

int size_class_of(std::size_t bytes) { return std::bit_width(bytes) - 1; }

struct State {
  std::mutex mutex;
  // The block that was freed first is at the front.
  std::vector<Header*> free[kClasses];
  Clock::time_point looked;
  std::uint64_t system_allocations = 0;
  std::uint64_t bytes = 0;
  std::int64_t idle_bytes = 0;  // Bytes of free blocks.
};

// The number of free blocks of about this size to keep. A few large blocks are enough for any pipeline, and more would
// be left over from bursts; but a small call has dozens of small arrays, which cost little to keep. Beyond the limit
// the oldest block is freed, so that sizes no longer in use do not displace sizes in use.
std::size_t kept_blocks(std::size_t bytes) {
  constexpr std::size_t kFew = 16, kMany = 256, kCheap = std::size_t{32} << 20;
  return std::clamp(kCheap / bytes, kFew, kMany);
}

// Never destroyed: tensors may free blocks while the interpreter is shutting down.
State& state() {
  static State* instance = new State;
  return *instance;
}

std::size_t rounded_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

bool is_huge(std::size_t bytes) { return bytes >= 2 * kHugePage; }

// Maps this many bytes, aligned to `alignment`, a multiple of every machine's page size.
void* mapped(std::size_t bytes, std::size_t alignment) {
  const std::size_t length = rounded_up(bytes, kPage);
  void* memory = mmap(nullptr, length + alignment, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  auto* start = static_cast<std::byte*>(memory);
  const std::size_t before = -reinterpret_cast<std::uintptr_t>(start) % alignment;
  if (before > 0) munmap(start, before);
  if (before < alignment) munmap(start + before + length, alignment - before);
  return start + before;
}

// Requests huge pages only for the bytes in use: a huge page is allocated as a whole, even if only part of it is used.
void* system_memory(std::size_t bytes, std::size_t used) {
  if (bytes < kMapped) return ::operator new(bytes, std::align_val_t(kAlignment));
  void* memory = mapped(bytes, is_huge(bytes) ? kHugePage : kPage);
  // Only a hint: without huge pages everything works, but slower.
  if (is_huge(bytes)) madvise(memory, used / kHugePage * kHugePage, MADV_HUGEPAGE);
  return memory;
}

void release(State& s, Header* header) {
  const std::size_t bytes = sizeof(Header) + header->bytes;
  s.bytes -= header->bytes;
  if (bytes < kMapped) {
    ::operator delete(header, std::align_val_t(kAlignment));
  } else {
    munmap(header, rounded_up(bytes, kPage));
  }
}

void release_free(State& s, Header* header) {
  s.idle_bytes -= static_cast<std::int64_t>(header->bytes);
  release(s, header);
}

void release_idle(State& s, Clock::time_point now) {
  for (auto& blocks : s.free) {
    const auto is_recent = [now](const Header* header) { return now - header->given < kIdle; };
    const auto recent = std::find_if(blocks.begin(), blocks.end(), is_recent);
    std::for_each(blocks.begin(), recent, [&s](Header* header) { release_free(s, header); });
    blocks.erase(blocks.begin(), recent);
  }
}

void release_all(State& s) {
  for (auto& blocks : s.free) {
    for (Header* header : blocks) release_free(s, header);
    blocks.clear();
  }
}

// A block from the system.
Header* allocated(State& s, std::size_t bytes, std::size_t wanted) {
  auto* header = static_cast<Header*>(system_memory(sizeof(Header) + wanted, sizeof(Header) + bytes));
  header->bytes = wanted;
  header->size_class = size_class_of(wanted);
  s.system_allocations += 1;
  s.bytes += wanted;
  return header;
}

}  // namespace

void* pool_take(std::size_t bytes, std::size_t spare) {
  const std::size_t wanted = rounded(bytes + spare);
  MemoryRoom* room = memory_room();
  if (room != nullptr) room->take(wanted);
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto& blocks = s.free[size_class_of(wanted)];
  for (auto it = blocks.rbegin(); it != blocks.rend(); ++it) {
    if ((*it)->bytes == wanted) {
      Header* header = *it;
      blocks.erase(std::next(it).base());
      s.idle_bytes -= static_cast<std::int64_t>(wanted);
      return header + 1;
    }
  }
  // The system must have the memory that the call may still take.
  if (room != nullptr && s.idle_bytes > room->left()) release_all(s);
  try {
    return allocated(s, bytes, wanted) + 1;
  } catch (...) {
    if (room != nullptr) room->give(wanted);
    throw;
  }
}

void pool_give(void* block) noexcept {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  const Clock::time_point now = Clock::now();
  header->given = now;
  if (MemoryRoom* room = memory_room()) room->give(header->bytes);
  State& s = state();
  std::lock_guard lock(s.mutex);
  auto& blocks = s.free[header->size_class];
  blocks.push_back(header);
  s.idle_bytes += static_cast<std::int64_t>(header->bytes);
  if (blocks.size() > kept_blocks(header->bytes)) {
    release_free(s, blocks.front());
    blocks.erase(blocks.begin());
  }
  if (now - s.looked >= kLook) {
    s.looked = now;
    release_idle(s, now);
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
  release_all(s);
}

void pool_drop(void* block) noexcept {
  if (block == nullptr) return;
  Header* header = static_cast<Header*>(block) - 1;
  if (MemoryRoom* room = memory_room()) room->give(header->bytes);
  State& s = state();
  std::lock_guard lock(s.mutex);
  release(s, header);
}

Buffer::~Buffer() { pool_give(data_); }

void Buffer::release() {
  pool_give(data_);
  data_ = nullptr;
  capacity_ = 0;
}

void Buffer::drop_if_large() {
  constexpr std::size_t kKept = std::size_t{64} << 20;
  if (capacity_ <= kKept) return;
  pool_drop(data_);
  data_ = nullptr;
  capacity_ = 0;
}

void* Buffer::ensure_bytes(std::size_t bytes) {
  if (bytes > capacity_ || data_ == nullptr) {
    release();
    // A quarter more than requested, so that slowly growing scenes do not reallocate at each call.
    const std::size_t spare = bytes / 4;
    data_ = pool_take(bytes, spare);
    capacity_ = bytes + spare;
  }
  return data_;
}

}  // namespace lumigrad
