// The state of a block of 4x4 pixels while the spheres of its tile are blended, including its closest spheres.
#pragma once

#include "common/cpu/pack.h"
#include "spheres/cpu/tiles.h"

LG_BEGIN_ENGINE(spheres)

inline constexpr float kNoDepth = 3.4e38f;

LG_INLINE IntPack load_int(const float* p) { return bits(Pack::load(p)); }
LG_INLINE void store_int(float* p, IntPack value) { from_bits(value).store(p); }

inline constexpr int kAnyCount = -1;

// `kCount` packs, or any number of them if kCount is kAnyCount, stored at `home` between uses.
template <int kCount>
struct Packs {
  Pack local[kCount > 0 ? kCount : 1];
  LG_INLINE Packs(float* home, int) {
    for (int i = 0; i < kCount; ++i) local[i] = Pack::load(home + i * kLanes);
  }
  static LG_INLINE int count(int) { return kCount; }
  LG_INLINE Pack get(int i) const { return local[i]; }
  LG_INLINE void set(int i, Pack value) { local[i] = value; }
  LG_INLINE void save(float* home) const {
    for (int i = 0; i < kCount; ++i) local[i].store(home + i * kLanes);
  }
};

template <>
struct Packs<kAnyCount> {
  float* home;
  LG_INLINE Packs(float* h, int) : home(h) {}
  static LG_INLINE int count(int n) { return n; }
  LG_INLINE Pack get(int i) const { return Pack::load(home + i * kLanes); }
  LG_INLINE void set(int i, Pack value) { value.store(home + i * kLanes); }
  LG_INLINE void save(float*) const {}
};

// Spec 5.3: the closest spheres, ascending by depth; of equal depths the newest comes first. Ids are bit patterns,
// which are only moved.
template <int kTrack>
struct Tracker {
  Packs<kTrack> depths, ids;
  int count;

  LG_INLINE Tracker(float* home, int n)
      : depths(home, n), ids(home + Packs<kTrack>::count(n) * kLanes, n), count(Packs<kTrack>::count(n)) {}

  LG_INLINE void save(float* home) const {
    depths.save(home);
    ids.save(home + count * kLanes);
  }

  LG_INLINE void insert(MaskPack hit, Pack depth, int id) {
    const int n = kTrack > 0 ? kTrack : count;
    const MaskPack enters = hit & (depth <= depths.get(n - 1));
    if (!any(enters)) return;
    Pack carried_depth = select(enters, depth, Pack(kNoDepth * 2.0f));
    Pack carried_id = from_bits(IntPack(id));
#pragma GCC unroll 8
    for (int i = 0; i < n; ++i) {
      const Pack here = depths.get(i), here_id = ids.get(i);
      const MaskPack swap = carried_depth <= here;
      depths.set(i, select(swap, carried_depth, here));
      ids.set(i, select(swap, carried_id, here_id));
      carried_depth = select(swap, here, carried_depth);
      carried_id = select(swap, here_id, carried_id);
    }
  }
};

// Packs in a block's state, in order; then K channels, T depths and T ids.
enum BlockField {
  kMaximum,     // M; exact: its whole part
  kMaximumLow,  // Exact: the rest of M. Compat: the remaining weight of the background.
  kDenominator,
  kMaxNear,
  kHits,    // int
  kLoaded,  // int; compat: candidates since the last check
  kActive,  // float: 1 until the pixel has ended
  kStop,    // int; exact: entries of the tile's list that were visited
  kBlockFields
};

// Floats per block.
inline int block_floats(int channels, int track) { return (kBlockFields + channels + 2 * track) * kLanes; }

// Images of a tile, row by row, in which they are assembled before they are written.
struct TileImages {
  float *color, *blend, *stop, *info;
  int left, top;
  int row;  // The first row that is still to be written.
};

// The buffers with which a thread renders tiles.
struct TileScratch {
  Batch* batch;
  float* blocks;         // kBlocks states.
  float* shapes;         // [kBatch, 3 packs] each hit's squared offset, then closeness, exponent and depth.
  int* outlines;         // [kBatch, pack] exact: pixels at an outline, each as the number of a hit and a lane.
  uint32_t* events;      // [kBatch] hits of a block: number within the batch, and the pixels << 16.
  uint16_t* checks;      // [kBatch] compat: pixels whose 65th candidate this is.
  TileImages images[2];  // The current tile, and the previous one.
};

// Whether a pixel's info fits into a pack, because few spheres are tracked; it is then assembled by tile.
inline bool packs_info(int track) { return track > 0 && 3 + 2 * track <= kLanes; }
// Floats per row of a tile's image, padded since writes may extend a pack beyond it.
inline constexpr int tile_row_floats(int count) { return kTileWidth * count + kLanes; }
inline std::size_t tile_image_floats(int count) {
  return static_cast<std::size_t>(tile_row_floats(count)) * kTileHeight;
}

inline constexpr int kShapeFloats = 3 * kLanes;
inline constexpr int kOutlines = (kBatch + 1) * kLanes;

inline std::size_t tile_images_floats(int track) {
  return 2 * tile_image_floats(3) + tile_image_floats(1) + (packs_info(track) ? tile_image_floats(3 + 2 * track) : 0);
}

inline TileImages tile_images(float* memory, int track) {
  float *const blend = memory + tile_image_floats(3), *const stop = blend + tile_image_floats(3);
  return {memory, blend, stop, packs_info(track) ? stop + tile_image_floats(1) : nullptr, 0, 0, kTileHeight};
}

inline std::size_t tile_scratch_bytes(int channels, int track) {
  const std::size_t floats = static_cast<std::size_t>(block_floats(channels, track)) * kBlocks + kBatch * kShapeFloats +
                             kOutlines + 2 * tile_images_floats(track);
  const std::size_t bytes = sizeof(Batch) + sizeof(float) * floats + kBatch * (sizeof(uint32_t) + sizeof(uint16_t));
  return (bytes + 127) / 64 * 64;
}

inline TileScratch tile_scratch(char* memory, int channels, int track) {
  TileScratch s;
  s.batch = reinterpret_cast<Batch*>(memory);
  s.blocks = reinterpret_cast<float*>(memory + sizeof(Batch));
  s.shapes = s.blocks + static_cast<std::size_t>(block_floats(channels, track)) * kBlocks;
  float* images = s.shapes + kBatch * kShapeFloats;
  for (TileImages& i : s.images) {
    i = tile_images(images, track);
    images += tile_images_floats(track);
  }
  s.outlines = reinterpret_cast<int*>(images);
  s.events = reinterpret_cast<uint32_t*>(s.outlines + kOutlines);
  s.checks = reinterpret_cast<uint16_t*>(s.events + kBatch);
  return s;
}

// Pixels of the block that lie on the film.
LG_INLINE MaskPack on_film(const Camera& c, int x, int y) {
  return ((lane_x() + Pack(static_cast<float>(x))) < Pack(static_cast<float>(c.width))) &
         ((lane_y() + Pack(static_cast<float>(y))) < Pack(static_cast<float>(c.height)));
}

LG_END
