// The sphere engine on the CPU: the interface that each instruction set implements, and its workspace.
#pragma once

#include "common/isa.h"
#include "common/pool.h"
#include "common/stage_clock.h"
#include "spheres/params.h"

namespace lumigrad::spheres {

enum Stage { kSetupStage, kSortStage, kBinStage, kBlendStage, kFinishStage };

// Grows to what the largest call needed and is reused; one call at a time.
struct Workspace {
  Buffer records, rectangles, area, tiles, pairs, pairs_swap, histogram;
  Buffer tile_counts, tile_starts, tile_entries;
  Buffer scratch, rows, crossing, crossing_rows, camera_parts;
  Buffer places, members, tracked;  // Compat.
  double milliseconds[kMaxStages] = {};
  // Identifies the view that the buffers were last prepared for, unique in the process; 0 if there is none.
  uint64_t prepared = 0;

  // Returns large lists and rows to the system.
  void drop_lists() {
    const std::size_t before = tile_entries.bytes();
    for (Buffer* buffer : {&tile_entries, &crossing_rows, &places, &members, &tracked}) buffer->drop_if_large();
    if (tile_entries.bytes() != before) prepared = 0;
  }
  std::size_t bytes() const {
    return records.bytes() + rectangles.bytes() + area.bytes() + tiles.bytes() + pairs.bytes() + pairs_swap.bytes() +
           histogram.bytes() + tile_counts.bytes() + tile_starts.bytes() + tile_entries.bytes() + scratch.bytes() +
           rows.bytes() + crossing.bytes() + crossing_rows.bytes() + camera_parts.bytes() + places.bytes() +
           members.bytes() + tracked.bytes();
  }
};

struct CpuEngine {
  void (*forward)(const Camera&, const Settings&, const Scene&, const Outputs&, Workspace&);
  // `prepared` identifies the workspace's contents after the forward pass. If they are unchanged, setup, sort and
  // binning are skipped.
  void (*backward)(const Camera&, const Settings&, const Scene&, const Upstream&, const Gradients&, uint64_t prepared,
                   Workspace&);
};

// Returns a number that was not returned before in this process.
uint64_t next_prepared();

CpuEngine cpu_engine(Isa isa);

}  // namespace lumigrad::spheres
