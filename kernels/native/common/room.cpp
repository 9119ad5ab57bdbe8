#include "common/room.h"

#include <utility>

namespace lumigrad {
namespace {

thread_local MemoryRoom* current = nullptr;

}  // namespace

NoRoom::NoRoom(std::int64_t asked, std::int64_t limit)
    : message_("the call needs at least " + std::to_string(asked) + " bytes, of which it may have " +
               std::to_string(limit) +
               "; use fewer primitives, primitives that cover less of the image, or smaller images") {}

void MemoryRoom::take(std::size_t bytes) {
  const std::int64_t more = taken_ + static_cast<std::int64_t>(bytes);
  if (more > limit_) {
    refused_ = more;
    throw NoRoom(more, limit_);
  }
  taken_ = more;
}

MemoryRoom* limit_memory(MemoryRoom* room) { return std::exchange(current, room); }

MemoryRoom* memory_room() { return current; }

}  // namespace lumigrad
