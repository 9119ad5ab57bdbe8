// A forward state for Python.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "serving/passes/retained.h"

namespace lumigrad::serving {

// A pass with the objects that it refers to.
struct BoundPass {
  std::shared_ptr<RetainedPass> pass;
  nanobind::object kind;
};

// Keeps a state alive as long as arrays refer to its memory.
inline nanobind::capsule owner_of(const BoundPass& bound) {
  auto owner = std::make_unique<std::shared_ptr<RetainedPass>>(bound.pass);
  nanobind::capsule capsule(owner.get(),
                            [](void* p) noexcept { delete static_cast<std::shared_ptr<RetainedPass>*>(p); });
  owner.release();
  return capsule;
}

}  // namespace lumigrad::serving
