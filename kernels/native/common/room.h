// The memory that the calls of a thread may take from the pools, if their caller limits it: how much lists of tiles
// take, for example, is known only once the pairs of tiles and primitives are counted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>

namespace lumigrad {

// A call was about to take more memory than its caller allows. It has allocated nothing of what was refused.
class NoRoom : public std::bad_alloc {
 public:
  NoRoom(std::int64_t asked, std::int64_t limit);
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  std::string message_;
};

// A limit, and what was taken since it was set: blocks that were taken before and are given back meanwhile add to it.
// Only the thread that it limits uses it.
class MemoryRoom {
 public:
  explicit MemoryRoom(std::int64_t limit) : limit_(limit) {}

  // Throws NoRoom, and counts nothing, if more is taken than is left.
  void take(std::size_t bytes);
  void give(std::size_t bytes) { taken_ -= static_cast<std::int64_t>(bytes); }
  std::int64_t left() const { return limit_ - taken_; }
  // The bytes that the call would have had when it was refused; 0: it was not.
  std::int64_t refused() const { return refused_; }

 private:
  std::int64_t limit_, taken_ = 0, refused_ = 0;
};

// Limits what this thread takes from the pools from now on to `room`, which must live as long; null: no limit. Returns
// the limit before.
MemoryRoom* limit_memory(MemoryRoom* room);
// The room of this thread, or null.
MemoryRoom* memory_room();

}  // namespace lumigrad
