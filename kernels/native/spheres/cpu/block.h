// The state of a block of 4x4 pixels while the spheres of its tile are blended, including its closest spheres.
#pragma once

#include "common/cpu/pack.h"
#include "spheres/cpu/tiles.h"

LG_BEGIN_ENGINE(spheres)

inline constexpr float kNoDepth = 3.4e38f;

LG_INLINE IntPack load_int(const float* p) { return bits(Pack::load(p)); }
LG_INLINE void store_int(float* p, IntPack value) { from_bits(value).store(p); }

// `kCount` packs, or a number given at run time if kCount is 0, stored at `home` between uses.
template <int kCount>
struct Packs {
  Pack local[kCount];
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
struct Packs<0> {
  float* home;
  LG_INLINE Packs(float* h, int) : home(h) {}
  static LG_INLINE int count(int n) { return n; }
  LG_INLINE Pack get(int i) const { return Pack::load(home + i * kLanes); }
  LG_INLINE void set(int i, Pack value) { value.store(home + i * kLanes); }
  LG_INLINE void save(float*) const {}
};

// Spec 5.3: the closest spheres, ascending by depth; an equal depth goes in front of the older one. Ids are kept as
// bit patterns and only ever moved.
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
  kActive,  // float: 1 while the pixel still draws
  kStop,    // int; exact: entries of the tile's list that were visited
  kBlockFields
};

// Floats per block.
inline int block_floats(int channels, int track) { return (kBlockFields + channels + 2 * track) * kLanes; }

// The buffers with which a thread draws tiles.
struct TileScratch {
  Batch* batch;
  float* blocks;     // kBlocks states.
  float* shapes;     // [kBatch, 3 packs] exact: closeness, rest of the exponent and depth of each hit
  uint32_t* events;  // [kBatch] hits of a block: number within the batch, and the pixels << 16.
  uint16_t* checks;  // [kBatch] compat: pixels whose 65th candidate this is.
  float* info;       // The info of the tile's pixels, where it is put together before it is written.
};

// The info of a pixel with at most so many tracked spheres fits into a pack.
inline constexpr int kPackedTrack = (kLanes - 3) / 2;
// Floats per row of a tile's info, which may be written a pack too far; 0 if it is not put together.
inline int info_stride(int track) {
  return track > 0 && track <= kPackedTrack ? kTileWidth * (3 + 2 * track) + kLanes : 0;
}

inline constexpr int kShapeFloats = 3 * kLanes;

inline std::size_t tile_scratch_bytes(int channels, int track) {
  const std::size_t floats = static_cast<std::size_t>(block_floats(channels, track)) * kBlocks + kBatch * kShapeFloats +
                             static_cast<std::size_t>(info_stride(track)) * kTileHeight;
  const std::size_t bytes = sizeof(Batch) + sizeof(float) * floats + kBatch * (sizeof(uint32_t) + sizeof(uint16_t));
  return (bytes + 127) / 64 * 64;
}

inline TileScratch tile_scratch(char* memory, int channels, int track) {
  TileScratch s;
  s.batch = reinterpret_cast<Batch*>(memory);
  s.blocks = reinterpret_cast<float*>(memory + sizeof(Batch));
  s.shapes = s.blocks + static_cast<std::size_t>(block_floats(channels, track)) * kBlocks;
  s.info = s.shapes + kBatch * kShapeFloats;
  s.events = reinterpret_cast<uint32_t*>(s.info + static_cast<std::size_t>(info_stride(track)) * kTileHeight);
  s.checks = reinterpret_cast<uint16_t*>(s.events + kBatch);
  return s;
}

// Pixels of the block that lie on the film.
LG_INLINE MaskPack on_film(const Camera& c, int x, int y) {
  return ((lane_x() + Pack(static_cast<float>(x))) < Pack(static_cast<float>(c.width))) &
         ((lane_y() + Pack(static_cast<float>(y))) < Pack(static_cast<float>(c.height)));
}

LG_END
