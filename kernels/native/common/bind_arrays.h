// The named arrays of a Python call. The Python package checks every array before the call.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <type_traits>

#include "common/math/number.h"

// One namespace per build, so that nanobind does not confuse the emulation's classes with those of a GPU.
LG_BEGIN

// torch's name of a number type.
template <class T>
constexpr const char* torch_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, int64_t>) return "int64";
  if constexpr (std::is_same_v<T, int32_t>) return "int32";
  if constexpr (std::is_same_v<T, int16_t>) return "int16";
  if constexpr (std::is_same_v<T, uint8_t>) return "uint8";
}

// An array of a call, valid as long as the call's arguments. torch's tensors are read through their attributes:
// nanobind would call `__dlpack__`, which is Python code that takes twenty times as long.
template <class T>
class CallArray {
 public:
  CallArray() = default;
  explicit CallArray(nanobind::handle given) : tensor_(given) {
    if (take_tensor()) return;
    constexpr bool kConvert = false;  // Conversion would make a copy, and results written to it would be lost.
    array_ = nanobind::cast<nanobind::ndarray<T, nanobind::c_contig>>(given, kConvert);
    tensor_ = {};
    data_ = array_.data();
  }

  T* data() const { return data_; }
  std::size_t ndim() const { return tensor_ ? nanobind::len(nanobind::object(tensor_.attr("shape"))) : array_.ndim(); }
  std::size_t shape(std::size_t axis) const {
    return tensor_ ? nanobind::cast<std::size_t>(tensor_.attr("shape")[axis]) : array_.shape(axis);
  }
  // The number of values.
  std::size_t size() const { return ndim() == 0 ? 1 : shape(0) * row_size(); }
  // The number of values with one index of the first axis.
  std::size_t row_size() const {
    std::size_t size = 1;
    for (std::size_t axis = 1; axis < ndim(); ++axis) size *= shape(axis);
    return size;
  }

 private:
  // Looked up once torch is imported, and never released: the interpreter may be gone by then.
  struct Torch {
    PyObject *tensor = nullptr, *type = nullptr;
    PyObject *dtype = nullptr, *is_contiguous = nullptr, *data_ptr = nullptr;
  };
  static inline constinit Torch torch_;

  static bool has_torch() {
    if (torch_.tensor != nullptr) return true;
    PyObject* module = PyImport_GetModule(nanobind::str("torch").ptr());
    if (module == nullptr) return false;
    const nanobind::object torch = nanobind::steal(module);
    torch_ = {nullptr, torch.attr(torch_name<T>()).inc_ref().ptr(), PyUnicode_InternFromString("dtype"),
              PyUnicode_InternFromString("is_contiguous"), PyUnicode_InternFromString("data_ptr")};
    torch_.tensor = torch.attr("Tensor").inc_ref().ptr();
    return true;
  }

  bool take_tensor() {
    if (!has_torch()) return false;
    if (!PyType_IsSubtype(Py_TYPE(tensor_.ptr()), reinterpret_cast<PyTypeObject*>(torch_.tensor))) return false;
    if (!of(PyObject_GetAttr(tensor_.ptr(), torch_.dtype)).is(torch_.type)) return false;
    if (!call(torch_.is_contiguous).is(Py_True)) return false;
    data_ = reinterpret_cast<T*>(nanobind::cast<std::uintptr_t>(call(torch_.data_ptr)));
    return true;
  }

  nanobind::object call(PyObject* method) const {
    return of(PyObject_CallMethodObjArgs(tensor_.ptr(), method, nullptr));
  }
  static nanobind::object of(PyObject* found) {
    if (found == nullptr) throw nanobind::python_error();
    return nanobind::steal(found);
  }

  nanobind::handle tensor_;
  nanobind::ndarray<T, nanobind::c_contig> array_;
  T* data_ = nullptr;
};

// The array of this name, if it is present and not None.
template <class T>
inline bool find_array(const nanobind::kwargs& arrays, const char* name, CallArray<T>& array) {
  PyObject* found = PyDict_GetItemString(arrays.ptr(), name);
  if (found == nullptr || found == Py_None) return false;
  array = CallArray<T>(found);
  return true;
}

template <class T>
inline T* find(const nanobind::kwargs& arrays, const char* name) {
  CallArray<T> array;
  return find_array(arrays, name, array) ? array.data() : nullptr;
}

LG_END
