// A caller's limit on the memory that the calls of a thread may take from the pools. The size of tile lists, for
// example, is known only once the pairs of tiles and primitives are counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

namespace lumigrad {

// Thrown if a call would take more memory than its caller allows. Nothing of the refused memory was allocated.
class NoRoom : public std::bad_alloc {
 public:
  NoRoom(std::int64_t asked, std::int64_t limit);
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// A limit, and the memory taken since it was set; blocks that were taken before and are returned meanwhile raise what
// is left. Only the limited thread uses it.
class MemoryRoom {
 public:
  explicit MemoryRoom(std::int64_t limit) : limit_(limit) {}

  // Counts bytes that are taken; throws NoRoom, and counts nothing, if fewer are left.
  void take(std::size_t bytes);
  void give(std::size_t bytes) { taken_ -= static_cast<std::int64_t>(bytes); }
  std::int64_t left() const { return limit_ - taken_; }
  // The bytes that the call would have held, had it not been refused; 0 if it was not refused.
  std::int64_t refused() const { return refused_; }

 private:
  std::int64_t limit_, taken_ = 0, refused_ = 0;
};

// Limits what this thread takes from the pools to `room`, which must live as long as it is the limit; null: no limit.
// Returns the previous limit.
MemoryRoom* limit_memory(MemoryRoom* room);
// The room of this thread, or null.
MemoryRoom* memory_room();

}  // namespace lumigrad
