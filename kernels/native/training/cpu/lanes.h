// Loads and stores packs of arrays and of image rows; the last pack of a row may be partial.
#pragma once

#include "common/cpu/pack.h"
#include "training/math/float16.h"
#include "training/params.h"

LG_BEGIN_ENGINE(training)

// The first `lanes` numbers, then zeros.
LG_INLINE Pack load_lanes(const float* from, int lanes) {
  if (lanes == kLanes) return load_unaligned(from);
  alignas(64) float values[kLanes] = {};
  for (int i = 0; i < lanes; ++i) values[i] = from[i];
  return Pack::load(values);
}

LG_INLINE void store_lanes(Pack a, float* to, int lanes) {
  if (lanes == kLanes) return store_unaligned(a, to);
  alignas(64) float values[kLanes];
  a.store(values);
  for (int i = 0; i < lanes; ++i) to[i] = values[i];
}

typedef int32_t Integers __attribute__((vector_size(4 * kRegister)));
typedef float Floats __attribute__((vector_size(4 * kRegister)));

// A pack of numbers of another type, which `read` converts from Integers to Floats. Numbers beyond the first `lanes`
// are 0 before the conversion.
template <class T, class Read>
LG_INLINE Pack load_converted(const T* from, int lanes, const Read& read) {
  typedef T Part __attribute__((vector_size(sizeof(T) * kRegister)));
  constexpr int kParts = kLanes / kRegister;
  T rest[kLanes] = {};
  if (lanes < kLanes) {
    for (int i = 0; i < lanes; ++i) rest[i] = from[i];
    from = rest;
  }
  Floats parts[kParts];
  for (int i = 0; i < kParts; ++i) {
    Part part;
    memcpy(&part, from + i * kRegister, sizeof(part));
    parts[i] = read(__builtin_convertvector(part, Integers));
  }
  return same_bits<Pack>(parts);
}

LG_INLINE Pack load_float16(const uint16_t* from, int lanes) {
  return load_converted(from, lanes, [](Integers a) { return from_float16<Floats>(a); });
}

LG_INLINE Pack load_bfloat16(const uint16_t* from, int lanes) {
  return load_converted(from, lanes, [](Integers a) { return from_bfloat16<Floats>(a); });
}

// The lowest bits of bytes.
LG_INLINE MaskPack load_mask(const uint8_t* from) {
  uint64_t low, high;
  memcpy(&low, from, 8);
  memcpy(&high, from + 8, 8);
  // The product gathers the lowest bits of the bytes in its highest byte.
  constexpr uint64_t kLowest = 0x0101010101010101, kGather = 0x0102040810204080;
  low = ((low & kLowest) * kGather) >> 56;
  high = ((high & kLowest) * kGather) >> 56;
  return mask_from_bits(static_cast<unsigned>(low | high << 8));
}

LG_INLINE MaskPack first_lanes(int lanes) { return mask_from_bits((1u << lanes) - 1); }

// Loads lines of images, of bytes or floats, as floats.

LG_INLINE Pack load_bytes(const uint8_t* from, int lanes) {
  return load_converted(from, lanes, [](Integers a) { return __builtin_convertvector(a, Floats); });
}

LG_INLINE Pack load_plane(const Plane& plane, int64_t at, int lanes) {
  if (plane.numbers == Numbers::floats) return load_lanes(static_cast<const float*>(plane.data) + at, lanes);
  return load_bytes(static_cast<const uint8_t*>(plane.data) + at, lanes) / Pack(255.0f);
}

LG_INLINE float plane_at(const Plane& plane, int64_t at) {
  if (plane.numbers == Numbers::floats) return static_cast<const float*>(plane.data)[at];
  const uint8_t byte = static_cast<const uint8_t*>(plane.data)[at];
  return plane.numbers == Numbers::levels ? static_cast<float>(byte) / 255.0f : byte != 0 ? 1.0f : 0.0f;
}

// The weight of pixel `at`.
LG_INLINE float weight_at(const Plane& mask, int64_t at) { return mask.data == nullptr ? 1.0f : plane_at(mask, at); }

// Calls body(first, lanes) for packs of the numbers [0, count); the last pack may have fewer lanes.
template <class Body>
LG_INLINE void each_pack(int64_t count, const Body& body) {
  int64_t at = 0;
  for (; at + kLanes <= count; at += kLanes) body(at, kLanes);
  if (at < count) body(at, static_cast<int>(count - at));
}

LG_END
