// The error messages of a block that cannot continue.
#include <cstdio>
#include <map>

#include "block.h"

namespace lumigrad::emulation {
namespace {

std::string describe(const Site& site) {
  const std::string file = site.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line());
}

std::string triple(unsigned x, unsigned y, unsigned z) {
  char text[64];
  std::snprintf(text, sizeof(text), "(%u, %u, %u)", x, y, z);
  return text;
}

}  // namespace

std::string Block::name() const { return "block " + triple(place_.x, place_.y, place_.z); }

void Block::fail(const std::string& what, const Site& site) const {
  const auto thread = static_cast<unsigned>(current_);
  throw Error(name() + ", thread " +
              triple(thread % shape_.x, thread / shape_.x % shape_.y, thread / shape_.x / shape_.y) + ": " + what +
              " at " + describe(site));
}

std::string Block::waiting_for(int index) const {
  const Thread& thread = threads_[index];
  switch (thread.state) {
    case State::done:
      return "have returned";
    case State::at_barrier:
      return "wait in __syncthreads at " + describe(thread.request.site);
    case State::in_warp: {
      char mask[16];
      std::snprintf(mask, sizeof(mask), "%08x", thread.request.mask);
      return std::string("wait in ") + name_of(thread.request.operation) + " with mask " + mask + " at " +
             describe(thread.request.site);
    }
    default:
      return "run";
  }
}

std::string Block::who(const std::vector<int>& threads) const {
  std::string text;
  for (std::size_t i = 0; i < threads.size();) {
    std::size_t end = i;
    while (end + 1 < threads.size() && threads[end + 1] == threads[end] + 1) ++end;
    if (!text.empty()) text += ", ";
    text += std::to_string(threads[i]);
    if (end != i) text.append("-").append(std::to_string(threads[end]));
    i = end + 1;
  }
  return text;
}

std::string Block::deadlock() const {
  std::map<std::string, std::vector<int>> groups;
  for (int i = 0; i < count_; ++i) groups[waiting_for(i)].push_back(i);
  std::string text = name() + ": its threads wait for each other:";
  for (const auto& [state, threads] : groups) text += " threads " + who(threads) + " " + state + ";";
  text.pop_back();
  return text;
}

}  // namespace lumigrad::emulation
