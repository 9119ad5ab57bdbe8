// Finds the tiles that each Gaussian may reach.
#include "gaussians/cpu/rays/stages.h"

LG_BEGIN_ENGINE(gaussians)

void bin_rays(const ViewData& data, const RayField& field, const uint64_t* pairs, const Segments& segments,
              ViewState& state, Workspace& w) {
  // Masks of Gaussians that reach at most one window of tiles, kept from the counting pass for the placing pass.
  uint16_t* masks = w.tile_masks.ensure<uint16_t>(static_cast<std::size_t>(segments.total()));
  const auto each = [&](int p, const auto& visit, bool counting) {
    constexpr int kAhead = 8;
    const int64_t end = segments.begin[p] + segments.length[p];
    TileWork work;
    for (int64_t i = segments.begin[p]; i < end; ++i) {
      if (i + kAhead < end) {
        const uint32_t ahead = static_cast<uint32_t>(pairs[i + kAhead]);
        __builtin_prefetch(data.rectangles + ahead);
        __builtin_prefetch(data.bounds + static_cast<int64_t>(ahead) * kRecordFloats);
      }
      const uint32_t id = static_cast<uint32_t>(pairs[i]);
      const PixelRectangle& r = data.rectangles[id];
      const float* bounds = data.bounds + static_cast<int64_t>(id) * kRecordFloats;
      const int x0 = r.x0 / kTileWidth, x1 = (r.x1 - 1) / kTileWidth, y0 = r.y0 / kTileHeight,
                y1 = (r.y1 - 1) / kTileHeight;
      if (x0 == x1 && y0 == y1) {
        visit(y0 * data.tiles_x + x0, id);
        continue;
      }
      const bool single = x0 >> kWindowBits == x1 >> kWindowBits && y0 >> kWindowBits == y1 >> kWindowBits;
      for (int wy = y0 >> kWindowBits; wy <= y1 >> kWindowBits; ++wy) {
        for (int wx = x0 >> kWindowBits; wx <= x1 >> kWindowBits; ++wx) {
          const int64_t window = static_cast<int64_t>(wy) * field.windows_x + wx;
          const bool known = single && !counting;
          unsigned hit = known ? masks[i] : to_bits(reached(field, field.tiles + window * kBeamFloats, bounds));
          if (single) masks[i] = static_cast<uint16_t>(hit);
          for (; hit != 0; hit &= hit - 1) {
            const int bit = __builtin_ctz(hit);
            const int x = wx * kWindowSize + bit % kWindowSize, y = wy * kWindowSize + bit / kWindowSize;
            if (x >= x0 && x <= x1 && y >= y0 && y <= y1) visit(y * data.tiles_x + x, id);
          }
        }
        if (work.stops_after(x1 - x0 + 1)) return;
      }
    }
  };
  fill_tile_lists(data.tiles_x * data.tiles_y, segments.parts, w.tile_counts, state.tile_starts, state.entries, each);
}

LG_END
