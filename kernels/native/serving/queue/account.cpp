#include "serving/queue/account.h"

namespace lumigrad::serving {

std::int64_t Account::taken() const {
  const std::lock_guard lock(mutex_);
  return total_;
}

std::int64_t Account::taken_by(const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  const auto found = taken_.find(tenant);
  return found == taken_.end() ? 0 : found->second;
}

std::vector<std::pair<std::string, std::int64_t>> Account::tenants() const {
  const std::lock_guard lock(mutex_);
  return {taken_.begin(), taken_.end()};
}

std::optional<Shortage> Account::change(const std::string& tenant, std::int64_t more) {
  if (more == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  const auto found = taken_.try_emplace(tenant, 0).first;
  const std::int64_t own = found->second;
  const bool is_refused = more > 0 && !fits(own, more);
  const Shortage shortage{own, total_, more};
  if (!is_refused) {
    found->second += more;
    total_ += more;
  }
  if (found->second == 0) taken_.erase(found);
  return is_refused ? std::optional(shortage) : std::nullopt;
}

// Differences, since sums may overflow.
bool Account::fits(std::int64_t own, std::int64_t more) const {
  return more <= share_ - own && more <= limit_ - (own > 0 ? kept_ : 0) - total_;
}

std::int64_t Reservation::amount() const {
  const std::lock_guard lock(mutex_);
  return amount_;
}

std::optional<Shortage> Reservation::change(std::int64_t amount) {
  const std::lock_guard lock(mutex_);
  return change_by(amount - amount_);
}

std::optional<Shortage> Reservation::grow(std::int64_t more) {
  const std::lock_guard lock(mutex_);
  return change_by(more);
}

std::optional<Shortage> Reservation::change_by(std::int64_t more) {
  if (is_released_) return std::nullopt;
  const std::optional<Shortage> shortage = account_->change(tenant_, more);
  if (!shortage) amount_ += more;
  return shortage;
}

void Reservation::release() {
  const std::lock_guard lock(mutex_);
  if (is_released_) return;
  account_->change(tenant_, -amount_);
  amount_ = 0;
  is_released_ = true;
}

}  // namespace lumigrad::serving
