// The faces that rays cross.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "meshes/build/places.h"
#include "meshes/build/point.h"
#include "meshes/build/stages.h"

namespace lumigrad::meshes {

// Tests the triangles of the leaves in double. A ray next to a shared edge crosses exactly one of its two triangles,
// since the function of the edge has opposite values for them.
class RayCaster {
 public:
  RayCaster(const Leaves& leaves, int64_t faces, double extent)
      : leaves_(leaves), faces_(faces), least_(kAtStart * extent) {}

  // Calls cross(slot, 1) for each face that the ray crosses from the back, cross(slot, -1) for each that it crosses
  // from the front. Skips faces at the ray's start.
  template <class Cross>
  void cast(Point from, Point along, const Cross& cross) const {
    Ray ray = {from, along, {}, {}};
    const double way[3] = {along.x, along.y, along.z};
    for (int k = 0; k < 3; ++k) {
      ray.inverse[k] = 1.0 / (std::abs(way[k]) > 1e-12 ? way[k] : 1e-12);
      ray.near[k] = ray.inverse[k] > 0.0 ? k : 3 + k;
    }
    Node open[kMaxLevels * kWide];
    int count = 0;
    open[count++] = {leaves_.shape.levels - 1, 0};
    while (count > 0) {
      const Node node = open[--count];
      for (unsigned met = met_boxes(ray, node); met != 0; met &= met - 1) {
        const int32_t number = node.number * kWide + __builtin_ctz(met);
        if (node.level > 0) {
          open[count++] = {node.level - 1, number};
        } else {
          cross_leaf(ray, number, cross);
        }
      }
    }
  }

 private:
  struct Ray {
    Point from, along;
    double inverse[3];
    int near[3];  // The rows of the box's sides that the ray meets first.
  };
  struct Node {
    int level;
    int32_t number;
  };

  // A bit for each child whose box the ray meets.
  unsigned met_boxes(const Ray& ray, Node node) const {
    const float* box =
        leaves_.boxes.data() + static_cast<int64_t>(leaves_.shape.level_begin[node.level] + node.number) * kBoxStride;
    const double from[3] = {ray.from.x, ray.from.y, ray.from.z};
    double first[kWide], last[kWide];
    for (int lane = 0; lane < kWide; ++lane) first[lane] = 0.0, last[lane] = INFINITY;
    for (int k = 0; k < 3; ++k) {
      const float *near = box + ray.near[k] * kWide, *far = box + (2 * k + 3 - ray.near[k]) * kWide;
      const double start = from[k], inverse = ray.inverse[k];
      for (int lane = 0; lane < kWide; ++lane) {
        const double in = (near[lane] - start) * inverse, out = (far[lane] - start) * inverse;
        first[lane] = in > first[lane] ? in : first[lane];
        last[lane] = out < last[lane] ? out : last[lane];
      }
    }
    unsigned met = 0;
    for (int lane = 0; lane < kWide; ++lane) met |= static_cast<unsigned>(first[lane] <= last[lane]) << lane;
    return met;
  }

  template <class Cross>
  void cross_leaf(const Ray& ray, int32_t leaf, const Cross& cross) const {
    const float* t = leaves_.triangles.data() + static_cast<int64_t>(leaf) * (kTriangleFloats * kWide);
    double left[kWide], right[kWide], away[kWide], rate[kWide];
    for (int l = 0; l < kWide; ++l) {
      const auto row = [&](int k) { return static_cast<double>(t[k * kWide + l]); };
      const Point first = {row(0), row(1), row(2)}, u = {row(3), row(4), row(5)}, v = {row(6), row(7), row(8)};
      // The sums of coordinates are exact, so that all triangles around a corner have the same corner.
      const Point a = first - ray.from, b = (first + u) - ray.from, c = (first + v) - ray.from;
      const double ab = dot(ray.along, meshes::cross(a, b)), bc = dot(ray.along, meshes::cross(b, c));
      const double ca = dot(ray.along, meshes::cross(c, a));
      const Point normal = meshes::cross(u, v);
      const double low = ab < bc ? ab : bc, high = ab < bc ? bc : ab;
      left[l] = low < ca ? low : ca;
      right[l] = high > ca ? high : ca;
      rate[l] = dot(normal, ray.along);
      away[l] = dot(normal, a);
    }
    const int64_t begin = static_cast<int64_t>(leaf) * kWide;
    const int count = static_cast<int>(std::min<int64_t>(kWide, faces_ - begin));
    for (int l = 0; l < count; ++l) {
      if (left[l] < 0.0 && right[l] >= 0.0) continue;
      const bool ahead = rate[l] > 0.0 ? away[l] > least_ * rate[l] : away[l] < least_ * rate[l];
      if (ahead) cross(begin + l, left[l] >= 0.0 ? 1 : -1);
    }
  }

  static constexpr int64_t kBoxStride = int64_t{kBoxFloats} * kWide;
  const Leaves& leaves_;
  const int64_t faces_;
  const double least_;
};

}  // namespace lumigrad::meshes
