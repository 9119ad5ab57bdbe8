// A training whose steps need no Python. A step completes or changes nothing.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <vector>

#include "resident/binding.h"
#include "resident/machine.h"

namespace lumigrad::resident {

// Thrown if a step was not begun because the previous step has failed.
class OutOfTurn : public std::runtime_error {
 public:
  OutOfTurn() : std::runtime_error("a step was not begun: it is not the next one") {}
};

// The numbers of a report: the count of visible rows; kLossValues of the colour loss for each view; kPlaneValues for
// each view of the depth and alpha losses with a weight, undefined if nothing was compared; the surface terms with a
// weight, normals first; the values of the mean terms; and kAdamSums for each parameter.
class Training {
 public:
  // `next` is the number of the next step, counted from 0.
  Training(std::shared_ptr<Machine> machine, Binding binding, std::shared_ptr<const ViewTable> views,
           std::uint64_t next)
      : machine_(std::move(machine)), binding_(std::move(binding)), views_(std::move(views)), next_(next) {}

  // May only be called between steps.
  void set_next(std::uint64_t next) { next_ = next; }
  std::uint64_t next() const { return next_; }

  // Makes the next step with these views, on the device's thread. If it throws, nothing has changed.
  std::shared_ptr<Report> step(std::uint64_t number, const std::vector<std::uint32_t>& views);

 private:
  class Step;

  const std::shared_ptr<Machine> machine_;
  const Binding binding_;
  const std::shared_ptr<const ViewTable> views_;
  std::uint64_t next_;
};

}  // namespace lumigrad::resident
