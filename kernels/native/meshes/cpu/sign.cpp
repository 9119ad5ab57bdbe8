#include "meshes/cpu/sign.h"

#include "meshes/cpu/search.h"
#include "meshes/math/ray.h"
#include "meshes/math/winding.h"

LG_BEGIN_ENGINE(meshes)

namespace {

// The index of the node at a place, in arrays over all levels.
LG_INLINE int64_t node_number(const Tree& tree, int place) {
  return tree.level_begin[(place >> kHeightShift) - 1] + (place & kNumberMask);
}

// A ray along one axis; coordinates are permuted so that this axis is the first.
struct Ray {
  Vec<Pack> from;
  int rows[3];  // Offsets of the permuted coordinates of a box or a triangle, in floats.

  LG_INLINE Vec<Pack> vector(const float* at) const {
    return {Pack::load(at + rows[0]), Pack::load(at + rows[1]), Pack::load(at + rows[2])};
  }
};

LG_INLINE Ray ray_along(int axis, const float* point) {
  const int y = (axis + 1) % 3, z = (axis + 2) % 3;
  return {{Pack(point[axis]), Pack(point[y]), Pack(point[z])}, {axis * kWide, y * kWide, z * kWide}};
}

// Whether the ray first hits the back of a face. `waiting` is empty before and after.
bool meets_back(const Tree& tree, const Ray& ray, Waiting& waiting) {
  Nearest nearest;
  nearest.squared = kMissed;  // Here the field holds a distance that is not squared.
  bool back = false;
  int place = root_of(tree);
  while (true) {
    while (place >= 0 && place >> kHeightShift > 0) {
      const int first = first_child(place);
      const float* boxes = tree.boxes + node_number(tree, place) * kBoxStride;
      const Pack distance = ray_to_box(ray.from, ray.vector(boxes), ray.vector(boxes + 3 * kWide));
      const int lane = descend(distance, numbers_from(first), nearest, waiting);
      place = lane < 0 ? -1 : first + lane;
    }
    if (place >= 0) {
      const float* t = tree.triangles + static_cast<int64_t>(place) * kTriangleStride;
      const RayHit<Pack> hit =
          ray_to_triangle(ray.from, ray.vector(t), ray.vector(t + 3 * kWide), ray.vector(t + 6 * kWide));
      const float least = lowest(hit.distance);
      if (least < nearest.squared) {
        nearest.squared = least;
        back = lane(hit.facing, __builtin_ctz(to_bits(hit.distance == Pack(least)))) > 0.0f;
      }
    }
    do {
      if (waiting.count == 0) return back;
      place = waiting.places[--waiting.count];
    } while (waiting.squared[waiting.count] >= nearest.squared);
  }
}

LG_INLINE Pack winding_of_leaf(const Tree& tree, int leaf, Vec<Pack> p) {
  const float* t = tree.triangles + static_cast<int64_t>(leaf) * kTriangleStride;
  const Vec<Pack> a = load_vec(t) - p, b = a + load_vec(t + 3 * kWide), c = a + load_vec(t + 6 * kWide);
  const MaskPack used = IntPack::load(tree.faces + static_cast<int64_t>(leaf) * kWide) > IntPack(-1);
  return zero_unless(used, winding_of_triangle(a, b, c));
}

float winding_number(const Tree& tree, Vec<Pack> p, Waiting& waiting) {
  Pack total(0.0f);
  int place = root_of(tree);
  while (true) {
    if (place >> kHeightShift > 0) {
      const float* d = tree.dipoles + node_number(tree, place) * (kDipoleFloats * kWide);
      const Vec<Pack> r = load_vec(d + kDipoleCentre * kWide) - p;
      const MaskPack far = dot(r, r) > Pack::load(d + kDipoleReach * kWide);
      const Pack of_far = winding_of_part(r, [&](int i) { return Pack::load(d + i * kWide); });
      total = add_where(far, total, of_far);
      waiting.count += store_set(~far, numbers_from(first_child(place)), waiting.places + waiting.count);
    } else {
      total = total + winding_of_leaf(tree, place, p);
    }
    if (waiting.count == 0) return sum(total);
    place = waiting.places[--waiting.count];
  }
}

}  // namespace

void inside_by_rays(const Tree& tree, const float* x, const float* y, const float* z, int count, uint8_t* inside) {
  Waiting waiting;
  for (int i = 0; i < count; ++i) {
    const float point[3] = {x[i], y[i], z[i]};
    int votes = meets_back(tree, ray_along(0, point), waiting) + meets_back(tree, ray_along(1, point), waiting);
    if (votes == 1) votes += meets_back(tree, ray_along(2, point), waiting);
    inside[i] = votes >= 2;
  }
}

void inside_by_winding(const Tree& tree, const float* x, const float* y, const float* z, int count, uint8_t* inside) {
  Waiting waiting;
  for (int i = 0; i < count; ++i) {
    inside[i] = winding_number(tree, {Pack(x[i]), Pack(y[i]), Pack(z[i])}, waiting) > 0.5f;
  }
}

LG_END
