// The queue, renderer and accounts that draw the Renders of one tenant's calls.
#pragma once

#include <nanobind/nanobind.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "serving/bound_job.h"
#include "serving/fields.h"
#include "serving/queue/account.h"

namespace lumigrad::serving {

// How often a store has changed: while this is the same, what was found in it is current. The GIL guards it.
struct ChangeCount {
  std::uint64_t count = 0;
};

// A kind of Renders whose replies are one message.
struct KnownRender {
  nb::object render;  // A weak reference to a BoundRender, which only its scene keeps alive.
  std::string engine;
  std::int64_t room_bytes;
  std::size_t message_bytes;  // The payload that a caller must accept in one message.
};

// Everything needed to render for the calls of one tenant. The GIL guards all members.
class DrawingParts {
 public:
  // `staging` allocates host memory for downloading the outputs of a render, or is None; `changes` counts the changes
  // of the tenant's scenes.
  DrawingParts(nb::object queue, std::shared_ptr<Renderer> renderer, std::shared_ptr<Account> payloads,
               nb::object staging, std::shared_ptr<ChangeCount> changes, double seconds)
      : queue(std::move(queue)),
        renderer(std::move(renderer)),
        payloads(std::move(payloads)),
        staging(std::move(staging)),
        changes_(std::move(changes)),
        lifetime_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) {}

  // Remembers for a moment what draws requests like this one, if the scenes have not changed since they had changed
  // `changes` times.
  void keep(const RenderRequest& request, KnownRender known, std::uint64_t changes) {
    forget_old();
    if (changes == at_) known_.insert_or_assign(name_of(request), std::move(known));
  }
  // The prepared render of a request; null if it was not remembered, or must be looked up again.
  const KnownRender* find(const RenderRequest& request) {
    forget_old();
    const auto found = known_.find(name_of(request));
    return found == known_.end() ? nullptr : &found->second;
  }

  const nb::object queue;
  const std::shared_ptr<Renderer> renderer;
  const std::shared_ptr<Account> payloads;
  const nb::object staging;

 private:
  void forget_old() {
    const Clock::time_point now = Clock::now();
    if (now < until_ && changes_->count == at_) return;
    known_.clear();
    until_ = now + lifetime_;
    at_ = changes_->count;
  }
  // Scene, version and key, each with a known end.
  static std::string name_of(const RenderRequest& request) {
    std::string name;
    append_varint(name, request.scene_id.size());
    name += request.scene_id;
    name += request.is_named ? '\1' : '\0';
    append_varint(name, request.version);
    return name += request.key;
  }

  const std::shared_ptr<ChangeCount> changes_;
  const Clock::duration lifetime_;
  Clock::time_point until_{};
  std::uint64_t at_ = 0;
  std::unordered_map<std::string, KnownRender> known_;
};

}  // namespace lumigrad::serving
