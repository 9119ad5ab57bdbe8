// The mesh engine on the CPU: the interface that each instruction set implements, and its workspace.
#pragma once

#include <cstddef>

#include "common/isa.h"
#include "common/pool.h"
#include "common/stage_clock.h"
#include "meshes/params.h"

namespace lumigrad::meshes {

enum Stage { kSortStage, kQueryStage };
inline constexpr const char* kStageNames[] = {"sort", "query"};

// Scratch memory: grows to what the largest call needed and is reused; one call at a time.
struct Workspace {
  Buffer order, keys, scratch, moments;
  double milliseconds[kMaxStages] = {};  // Times of the last call, by stage.

  std::size_t bytes() const { return order.bytes() + keys.bytes() + scratch.bytes() + moments.bytes(); }
};

// Each call sets Workspace::milliseconds.
struct CpuEngine {
  void (*evaluate)(const World&, const Spheres&, const Settings&, const Outputs&, Workspace&);
};

CpuEngine cpu_engine(Isa isa);

}  // namespace lumigrad::meshes
