#include <nanobind/nanobind.h>

namespace lumigrad {
void bind_spheres(nanobind::module_&) {}
}  // namespace lumigrad
