// Lines of images, of bytes or floats, as floats.
#pragma once

#include "training/cpu_lanes.h"
#include "training/params_loss.h"

LG_BEGIN_ENGINE(training)

LG_INLINE Pack load_bytes(const uint8_t* from, int lanes) {
  return load_converted(from, lanes, [](Integers a) { return __builtin_convertvector(a, Floats); });
}

// Bytes are 255ths.
LG_INLINE Pack load_plane(const Plane& plane, int64_t at, int lanes) {
  if (!plane.bytes) return load_lanes(static_cast<const float*>(plane.data) + at, lanes);
  return load_bytes(static_cast<const uint8_t*>(plane.data) + at, lanes) / Pack(255.0f);
}

// What pixel `at` counts for.
LG_INLINE float weight_at(const Plane& mask, int64_t at) {
  if (mask.data == nullptr) return 1.0f;
  if (mask.bytes) return static_cast<const uint8_t*>(mask.data)[at] != 0 ? 1.0f : 0.0f;
  return static_cast<const float*>(mask.data)[at];
}

// Calls body(first, lanes) for packs of the numbers [0, count); the last may have fewer lanes.
template <class Body>
LG_INLINE void each_pack(int64_t count, const Body& body) {
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) body(at, kLanes);
  if (at < count) body(at, static_cast<int>(count - at));
}

LG_END
