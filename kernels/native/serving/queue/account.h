// The amount of one resource that each tenant has reserved, and the limits on it.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace lumigrad::serving {

// The amounts that were reserved when a change was refused.
struct Shortage {
  std::int64_t own, total, more;
};

// Thread-safe.
class Account {
 public:
  // One tenant may reserve `share`, and all tenants together `limit`; only tenants without a reservation may take the
  // last `kept`.
  Account(std::int64_t limit, std::int64_t share, std::int64_t kept) : limit_(limit), share_(share), kept_(kept) {}

  std::int64_t taken() const;
  std::int64_t taken_by(const std::string& tenant) const;
  // Tenants that have reserved something.
  std::vector<std::pair<std::string, std::int64_t>> tenants() const;
  // Changes a tenant's reservation. If it grows and too little is left, changes nothing and returns the shortage.
  std::optional<Shortage> change(const std::string& tenant, std::int64_t more);

 private:
  bool fits(std::int64_t own, std::int64_t more) const;

  const std::int64_t limit_, share_, kept_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, std::int64_t> taken_;
  std::int64_t total_ = 0;
};

// The amount that one call or object has reserved, released at the latest by the destructor. Thread-safe.
class Reservation {
 public:
  Reservation(std::shared_ptr<Account> account, std::string tenant)
      : account_(std::move(account)), tenant_(std::move(tenant)) {}
  ~Reservation() { release(); }
  Reservation(const Reservation&) = delete;
  Reservation& operator=(const Reservation&) = delete;

  std::int64_t amount() const;
  // Changes the amount as Account::change does; does nothing after the release.
  std::optional<Shortage> change(std::int64_t amount);
  std::optional<Shortage> grow(std::int64_t more);
  void release();

 private:
  std::optional<Shortage> change_by(std::int64_t more);

  const std::shared_ptr<Account> account_;
  const std::string tenant_;
  mutable std::mutex mutex_;
  std::int64_t amount_ = 0;
  bool is_released_ = false;
};

}  // namespace lumigrad::serving
