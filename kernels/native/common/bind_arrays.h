// The named arrays of a Python call. The Python package checks every array before the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "common/math/number.h"

// In a namespace per build, so that the emulation's are not taken for those of a GPU.
LG_BEGIN

// The array of this name, if it is present and not None. It is valid as long as the call's arguments.
template <class T>
inline bool find_array(const nanobind::kwargs& arrays, const char* name,
                       nanobind::ndarray<T, nanobind::c_contig>& array) {
  if (!arrays.contains(name) || arrays[name].is_none()) return false;
  constexpr bool kConvert = false;  // Into a copy, to which results would be lost.
  array = nanobind::cast<nanobind::ndarray<T, nanobind::c_contig>>(arrays[name], kConvert);
  return true;
}

template <class T>
inline T* find(const nanobind::kwargs& arrays, const char* name) {
  nanobind::ndarray<T, nanobind::c_contig> array;
  return find_array(arrays, name, array) ? array.data() : nullptr;
}

LG_END
