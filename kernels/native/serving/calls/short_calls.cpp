#include "serving/calls/short_calls.h"

#include <utility>

namespace lumigrad::serving {

bool ShortCalls::admit(ShortCall& call) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || places_->change(call.tenant, 1)) return false;
  call.has_place = true;
  open_.insert(&call);
  return true;
}

void ShortCalls::leave(ShortCall& call, ShortRecord record) {
  records_->add(std::move(record));
  {
    const std::lock_guard lock(mutex_);
    give_back(call);
    if (!call.has_ended) {
      call.left_at = Clock::now();
      unsent_.insert(&call);
    }
    if (open_.erase(&call) == 0 || !open_.empty()) return;
  }
  changed_.notify_all();
}

bool ShortCalls::begin_announcing(ShortCall& call) {
  const std::lock_guard lock(mutex_);
  if (call.is_announced || call.is_replying) return false;
  call.is_announced = call.is_announcing = true;
  return true;
}

void ShortCalls::announced(ShortCall& call) {
  {
    const std::lock_guard lock(mutex_);
    call.is_announcing = false;
  }
  changed_.notify_all();
}

bool ShortCalls::begin_reply(ShortCall& call) {
  const std::lock_guard lock(mutex_);
  call.is_replying = true;
  return !call.is_announcing;
}

void ShortCalls::wait_announced(ShortCall& call) {
  Lock lock(mutex_);
  changed_.wait(lock, [&] { return !call.is_announcing; });
}

void ShortCalls::hand_over(ShortCall& call) {
  {
    const std::lock_guard lock(mutex_);
    if (open_.erase(&call) == 0 || !open_.empty()) return;
  }
  changed_.notify_all();
}

void ShortCalls::release(ShortCall& call) {
  const std::lock_guard lock(mutex_);
  give_back(call);
}

void ShortCalls::give_back(ShortCall& call) {
  if (call.has_place) places_->change(call.tenant, -1);
  call.has_place = false;
}

void ShortCalls::end(ShortCall& call) {
  {
    const std::lock_guard lock(mutex_);
    call.has_ended = true;
    if (unsent_.erase(&call) == 0 || !unsent_.empty()) return;
  }
  changed_.notify_all();
}

void ShortCalls::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
}

bool ShortCalls::wait_idle(Clock::duration limit) {
  Lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return open_.empty(); });
}

bool ShortCalls::wait_sent(Clock::duration limit) {
  Lock lock(mutex_);
  return changed_.wait_for(lock, limit, [&] { return unsent_.empty(); });
}

std::vector<ShortCall*> ShortCalls::open() const {
  const std::lock_guard lock(mutex_);
  return {open_.begin(), open_.end()};
}

std::vector<ShortCall*> ShortCalls::unsent(Clock::time_point before) const {
  const std::lock_guard lock(mutex_);
  std::vector<ShortCall*> found;
  for (ShortCall* call : unsent_) {
    if (call->left_at < before) found.push_back(call);
  }
  return found;
}

std::size_t ShortCalls::count() const {
  const std::lock_guard lock(mutex_);
  return open_.size();
}

}  // namespace lumigrad::serving
