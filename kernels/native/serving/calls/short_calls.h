// Calls that a shortcut may answer, from their arrival until their replies are sent, without the Python objects that
// other calls need.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "serving/calls/records.h"
#include "serving/job.h"
#include "serving/queue/account.h"

namespace lumigrad::serving {

// State of a call. `ShortCalls` guards its mutable members.
struct ShortCall {
  std::string method, request_id, tenant;
  int priority = 1;
  std::size_t message_bytes = 0;  // The longest payload that the caller accepts in one message.
  Clock::time_point arrived{}, deadline = Clock::time_point::max();

  Clock::time_point left_at{};  // When it was answered.
  bool has_place = false;
  bool has_ended = false;  // Whether no part of the reply is on its way to the caller any more.

  bool is_announced = false;   // Whether the caller was sent the id ahead of the reply.
  bool is_announcing = false;  // Whether it is being sent.
  bool is_replying = false;    // Whether nothing may be sent ahead of the reply any more.
};

// The calls in progress, which take places from the account of all calls. Thread-safe.
class ShortCalls {
 public:
  ShortCalls(std::shared_ptr<Account> places, std::shared_ptr<Records> records)
      : places_(std::move(places)), records_(std::move(records)) {}

  // Admits a call; false if no more calls are accepted or no place is free.
  bool admit(ShortCall& call);
  // Ends an answered call, and records it before its reply is sent.
  void leave(ShortCall& call, ShortRecord record);
  // Begins to send the id of a call ahead of its reply; false if that was sent, or the reply may be on its way. Until
  // `announced`, the reply waits: gRPC never reports the end of a call for which something is sent after its status.
  bool begin_announcing(ShortCall& call);
  void announced(ShortCall& call);
  // Lets nothing more be sent ahead of the reply; false if something is being sent, which `wait_announced` waits for.
  bool begin_reply(ShortCall& call);
  void wait_announced(ShortCall& call);
  // Hands a call over to the general path, which returns its place with `release`.
  void hand_over(ShortCall& call);
  void release(ShortCall& call);
  // Forgets a call whose reply was sent, or whose caller is gone.
  void end(ShortCall& call);

  void close();
  // Waits until no call is in progress, or no reply is on its way to a caller; false after `limit`.
  bool wait_idle(Clock::duration limit);
  bool wait_sent(Clock::duration limit);
  std::vector<ShortCall*> open() const;
  // Calls that were answered before a time and whose replies are not sent yet.
  std::vector<ShortCall*> unsent(Clock::time_point before) const;
  std::size_t count() const;

 private:
  using Lock = std::unique_lock<std::mutex>;

  void give_back(ShortCall& call);

  const std::shared_ptr<Account> places_;
  const std::shared_ptr<Records> records_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool is_closed_ = false;
  std::unordered_set<ShortCall*> open_, unsent_;
};

}  // namespace lumigrad::serving
