// The Gaussian engine on the CPU: the interface that each instruction set implements, the state that a call retains,
// and its workspace.
#pragma once

#include <memory>
#include <vector>

#include "common/isa.h"
#include "common/pool.h"
#include "common/stage_clock.h"
#include "gaussians/params.h"

namespace lumigrad::gaussians {

enum Stage { kProjectStage, kSortStage, kBinStage, kBlendStage, kBackBlendStage, kBackProjectStage };
inline constexpr const char* kStageNames[] = {"project", "sort", "bin", "blend", "blend_backward", "project_backward"};

// The forward state of one view. The Gaussians that reach pixels have places in it. There are P places, of which a few
// are unused and have empty rectangles.
struct ViewState {
  Features features;
  int tiles_x = 0, tiles_y = 0;
  // The rows of tiles that are rendered.
  int first_row = 0, end_row = 0;
  std::size_t places = 0;  // P
  Buffer sixteens;         // [N / 16] the Gaussians' places, see cpu/places.h
  Buffer rectangles;       // [P] pixels that may be touched
  Buffer records;          // [P, kRecordFloats], see math/record.h
  Buffer more_features;    // [P, features], if they do not fit into a record
  Buffer tile_starts;      // [tiles + 1]
  Buffer entries;          // Places by tile, nearest first.
  Buffer masks;            // For each entry, the blocks of the tile in which it was drawn, as bits.
  Buffer closed;           // [tiles] the blocks whose pixels have all ended, as bits; of ellipses only.
  Buffer bounds;           // [P, kRecordFloats] along rays and for surfels, see cpu/view.h
  // Along rays: the pixels' rays and beams, and the motions of slices, see cpu/rays/field.h.
  Buffer rays, beams, motions;
  // Sums over the pixels of this view, written by blend_backward and read by project_backward.
  Buffer touched;       // [P] bytes: 1 if a place has sums
  Buffer rows;          // [P, kRecordFloats], see math/record.h
  Buffer feature_rows;  // [P, features], if they do not fit into a row
  // Along rays: sums of gradients through rays, in doubles: [kRaySums] of the lens and the motion, and [moving slices,
  // kSliceMotionSums].
  Buffer ray_gradients, slice_gradients;

  std::size_t bytes() const {
    return sixteens.bytes() + rectangles.bytes() + records.bytes() + more_features.bytes() + tile_starts.bytes() +
           entries.bytes() + masks.bytes() + closed.bytes() + bounds.bytes() + rays.bytes() + beams.bytes() +
           motions.bytes() + touched.bytes() + rows.bytes() + feature_rows.bytes() + ray_gradients.bytes() +
           slice_gradients.bytes();
  }
  void release_sums() {
    touched.release();
    rows.release();
    feature_rows.release();
  }
};

// The views of a call. A pass that is not retained has one state, which each view overwrites.
class Pass {
 public:
  Pass() = default;
  Pass(const Pass&) = delete;
  Pass& operator=(const Pass&) = delete;

  // Makes room for `count` views; existing states and their memory are kept. Only the rows of pixels [first_row,
  // end_row) of the images are needed: on the film other rows of tiles are not rendered.
  void prepare(int count, bool retained, int first_row = 0, int end_row = kMaxExtent) {
    retained_ = retained;
    count_ = count;
    first_row_ = first_row;
    end_row_ = end_row;
    const std::size_t states = retained ? count : 1;
    while (views_.size() < states) views_.push_back(std::make_unique<ViewState>());
  }
  int count() const { return count_; }
  int first_row() const { return first_row_; }
  int end_row() const { return end_row_; }
  // Returns large lists to the system; the views cannot be used afterwards.
  void drop_lists() {
    for (const auto& view : views_) {
      view->entries.drop_if_large();
      view->masks.drop_if_large();
    }
  }
  // Returns the memory of the sums over pixels, which the next backward pass allocates again.
  void release_sums() {
    for (const auto& view : views_) view->release_sums();
  }
  ViewState& view(int index) { return *views_[retained_ ? index : 0]; }
  std::size_t bytes() const {
    std::size_t sum = 0;
    for (const auto& view : views_) sum += view->bytes();
    return sum;
  }

 private:
  bool retained_ = false;
  int count_ = 0, first_row_ = 0, end_row_ = 0;
  std::vector<std::unique_ptr<ViewState>> views_;
};

// Scratch memory: grows to what the largest call needed and is reused; one call at a time.
struct Workspace {
  Buffer pairs, pairs_swap, histogram, tile_counts, tile_masks, crossing, crossing_rows, scratch, sums;
  double milliseconds[kMaxStages] = {};  // Times of the last call, by stage.

  // Returns large rows of Gaussians that reach into several bands.
  void drop_rows() { crossing_rows.drop_if_large(); }
  std::size_t bytes() const {
    return pairs.bytes() + pairs_swap.bytes() + histogram.bytes() + tile_counts.bytes() + tile_masks.bytes() +
           crossing.bytes() + crossing_rows.bytes() + scratch.bytes() + sums.bytes();
  }
};

// Arrays belong to all views of the call; a view's images are at index `view` of [V, ...]. Each call sets
// Workspace::milliseconds.
struct CpuEngine {
  // Renders one view and stores the state for backward in pass.view(view).
  void (*forward_view)(const View* views, int view, const Settings&, const Scene&, const Outputs&, Pass&, Workspace&);
  // Sums over the pixels of one view into its state's rows; of the gradients, writes only this view's
  // Gradients::background.
  void (*blend_backward)(const View* views, int view, const Settings&, const Scene&, const Upstream&, const Gradients&,
                         Pass&, Workspace&);
  // After blend_backward of every view: computes all other Gradients from the rows of all views, and overwrites them.
  // Rows of the scene's tensors whose Gradients::touched is 0 may stay unchanged with `touched_only`.
  void (*project_backward)(const View* views, int view_count, const Settings&, const Scene&, const Upstream&,
                           const Gradients&, bool touched_only, Pass&, Workspace&);
};

CpuEngine cpu_engine(Isa isa);

}  // namespace lumigrad::gaussians
