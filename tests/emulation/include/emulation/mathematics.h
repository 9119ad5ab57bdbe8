// CUDA's mathematical and bit functions, except those that CUDA shares with C (sqrtf, fmaf, …).
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>

inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __int_as_float(int value) { return std::bit_cast<float>(value); }
inline float __uint_as_float(unsigned value) { return std::bit_cast<float>(value); }

inline int __popc(unsigned value) { return std::popcount(value); }
inline int __popcll(unsigned long long value) { return std::popcount(value); }
// One more than the position of the lowest set bit; 0 if no bit is set.
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __clz(int value) { return std::countl_zero(static_cast<unsigned>(value)); }

// Read-only loads are ordinary loads.
template <class T>
T __ldg(const T* address) {
  return *address;
}

inline int min(int a, int b) { return b < a ? b : a; }
inline unsigned min(unsigned a, unsigned b) { return b < a ? b : a; }
inline float min(float a, float b) { return fminf(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline int max(int a, int b) { return a < b ? b : a; }
inline unsigned max(unsigned a, unsigned b) { return a < b ? b : a; }
inline float max(float a, float b) { return fmaxf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }

inline float rsqrtf(float value) { return 1.0f / sqrtf(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __saturatef(float value) { return fminf(fmaxf(value, 0.0f), 1.0f); }
inline int __float2int_rz(float value) { return static_cast<int>(value); }
// Each operation is rounded once, and never fused.
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
