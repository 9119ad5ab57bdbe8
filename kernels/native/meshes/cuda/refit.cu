// Fits a hierarchy to vertices in the device's memory, as build/ does in host memory: bounds, positions, leaves, nodes,
// normals, and what the host must know. Sums are in a fixed order.
#include "meshes/cuda/refit.h"

#include <algorithm>
#include <iterator>

#include "common/cuda/launch.h"
#include "common/cuda/primitives.cuh"
#include "meshes/build/face.h"
#include "meshes/build/places.h"
#include "meshes/cuda/boxes.cuh"

namespace lumigrad::meshes {
namespace {

// The threads and blocks over which sums and bounds are distributed.
constexpr int kSumThreads = 256;
constexpr unsigned kBoundBlocks = kSumThreads;
constexpr int kRowThreads = 128;
constexpr unsigned kRows = kRowThreads / kWide;

struct Bounds {
  double low[3], high[3];
};

__device__ Bounds no_bounds() { return {{INFINITY, INFINITY, INFINITY}, {-INFINITY, -INFINITY, -INFINITY}}; }

__device__ void enclose(Bounds& bounds, const Bounds& other) {
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    bounds.low[k] = ::fmin(bounds.low[k], other.low[k]);
    bounds.high[k] = ::fmax(bounds.high[k], other.high[k]);
  }
}

// The bounds of all threads of a block, for its first thread.
__device__ Bounds block_bounds(Bounds bounds) {
  constexpr int kWarps = kSumThreads / kWarp;
  __shared__ SharedArray<double, 6 * kWarps> partial;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    Bounds other;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      other.low[k] = __shfl_xor_sync(kWholeWarp, bounds.low[k], offset);
      other.high[k] = __shfl_xor_sync(kWholeWarp, bounds.high[k], offset);
    }
    enclose(bounds, other);
  }
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  for (int k = 0; lane_index() == 0 && k < 3; ++k) {
    partial[6 * warp + k] = bounds.low[k];
    partial[6 * warp + 3 + k] = bounds.high[k];
  }
  __syncthreads();
  for (int w = 0; threadIdx.x == 0 && w < kWarps; ++w) {
    Bounds other;
    for (int k = 0; k < 3; ++k) other.low[k] = partial[6 * w + k], other.high[k] = partial[6 * w + 3 + k];
    enclose(bounds, other);
  }
  return bounds;
}

// The bounds of the vertices that faces use. They are infinite if a coordinate is not finite or too large, or if
// vertices that were at one position are not, or if a face that was left out has an area.
__global__ void __launch_bounds__(kSumThreads)
    bounds_kernel(const double* vertices, int64_t count, double most, const int32_t* firsts, const int32_t* left_out,
                  int64_t left_out_count, Bounds* partial) {
  Bounds bounds = no_bounds();
  for (int64_t v = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; v < count; v += int64_t{gridDim.x} * kSumThreads) {
    const int32_t mark = firsts[v];
    const int64_t first = mark < 0 ? ~mark : mark;
    Bounds here;
    bool is_odd = false;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const double x = vertices[3 * v + k];
      is_odd |= !(::fabs(x) <= most) || x != vertices[3 * first + k];
      here.low[k] = here.high[k] = x;
    }
    if (is_odd) {
      bounds.low[0] = -INFINITY;
    } else if (mark >= 0) {
      enclose(bounds, here);
    }
  }
  for (int64_t f = int64_t{blockIdx.x} * kSumThreads + threadIdx.x; f < left_out_count;
       f += int64_t{gridDim.x} * kSumThreads) {
    const auto corner = [&](int i) { return point_at(vertices + 3 * int64_t{left_out[3 * f + i]}); };
    if (has_area(corner(0), corner(1), corner(2))) bounds.low[0] = -INFINITY;
  }
  bounds = block_bounds(bounds);
  if (threadIdx.x == 0) partial[blockIdx.x] = bounds;
}

// Centre and extent as place() in build/surface.cpp computes them; one block.
__global__ void __launch_bounds__(kSumThreads) frame_kernel(const Bounds* partial, Found* found) {
  const Bounds bounds = block_bounds(partial[threadIdx.x]);
  if (threadIdx.x != 0) return;
  double extent = 0.0;
  for (int k = 0; k < 3; ++k) {
    found->low[k] = bounds.low[k];
    found->high[k] = bounds.high[k];
    const double centre = 0.5 * bounds.low[k] + 0.5 * bounds.high[k];
    found->centre[k] = centre;
    extent = ::fmax(extent, ::fmax(bounds.high[k] - centre, centre - bounds.low[k]));
  }
  found->extent = ::nextafterf(static_cast<float>(extent), INFINITY);
  found->rounder = rounder_of(found->extent);
  found->margin = kWiden * found->extent;
  found->is_enclosed = 0;
}

// Positions relative to the centre; a thread per coordinate.
__global__ void __launch_bounds__(kSumThreads) positions_kernel(const double* vertices, const int32_t* sources,
                                                                int64_t count, const Found* found, float* positions) {
  const int64_t i = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (i >= 3 * count) return;
  const int64_t vertex = i / 3, k = i % 3;
  positions[i] = static_cast<float>(vertices[3 * int64_t{sources[vertex]} + k] - found->centre[k]);
}

struct LeafSums {
  double area, volume, size;
};

// The values of a face that the LeafFitter of build/fit.cpp computes.
struct Face {
  double twice, volume;
  float normal[3], angle[3];
  bool turned;
};
__device__ Face face_of(Point a, Point b, Point c) {
  const Point u = b - a, v = c - a, normal = cross(u, v);
  const double uu = squared_length(u), vv = squared_length(v), ww = squared_length(v - u), uv = dot(u, v);
  const double longest = ::fmax(::fmax(uu, vv), ww);
  Face face;
  face.twice = ::sqrt(squared_length(normal));
  face.volume = dot(a, normal) / 6.0;
  face.turned = ww < 0.25 * longest;
  const double inverse = face.twice > kLeastHeight * longest ? 1.0 / face.twice : 0.0;
  face.normal[0] = static_cast<float>(normal.x * inverse);
  face.normal[1] = static_cast<float>(normal.y * inverse);
  face.normal[2] = static_cast<float>(normal.z * inverse);
  const float y = static_cast<float>(face.twice);
  face.angle[1] = angle_of(y, static_cast<float>(uu - uv));
  face.angle[2] = angle_of(y, static_cast<float>(vv - uv));
  face.angle[0] = 3.14159265f - face.angle[1] - face.angle[2];
  return face;
}

struct LeafArrays {
  const int32_t *corners, *sources;
  float *triangles, *boxes, *normals, *angles;
  LeafSums* sums;  // Sums of each block.
};

// Sixteen lanes per leaf, including missing leaves; blocks are full.
__global__ void __launch_bounds__(kRowThreads)
    refit_leaves_kernel(const double* vertices, const float* positions, const Found* found, int64_t leaves,
                        int64_t faces, LeafArrays arrays) {
  const int64_t leaf = int64_t{blockIdx.x} * kRows + threadIdx.x / kWide;
  const RowLanes lanes = RowLanes::of_thread();
  const bool there = leaf < leaves;
  BoxPair box = missing_box();
  LeafSums sums = {0.0, 0.0, 0.0};
  if (there) {
    box = store_triangle(positions, found->rounder, arrays.corners, leaf, arrays.triangles, lanes);
    const int64_t slot = leaf * kWide + lanes.lane;
    const Point centre = point_at(found->centre);
    const auto corner = [&](int i) {
      return point_at(vertices + 3 * int64_t{arrays.sources[arrays.corners[3 * slot + i]]}) - centre;
    };
    const Face face = face_of(corner(0), corner(1), corner(2));
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      arrays.normals[3 * slot + k] = face.normal[k];
      arrays.angles[3 * slot + k] = face.angle[k];
    }
    if (slot < faces) sums = {0.5 * face.twice, face.volume, face.turned ? INFINITY : 0.0};
  }
  box = store_enclosing(box, there ? found->margin : 0.0f, arrays.boxes, leaf, lanes);
  if (there && lanes.lane == 0) {
    double edge[3];
    for (int k = 0; k < 3; ++k) edge[k] = static_cast<double>(box.high[k]) - box.low[k];
    sums.size += 2.0 * (edge[0] * edge[1] + edge[1] * edge[2] + edge[2] * edge[0]);
  }
  sums = {block_total<kRowThreads>(sums.area), block_total<kRowThreads>(sums.volume),
          block_total<kRowThreads>(sums.size)};
  if (threadIdx.x == 0) arrays.sums[blockIdx.x] = sums;
}

// Normals of vertices, summed in the order of build/fit.cpp; a thread per vertex.
__global__ void __launch_bounds__(kSumThreads)
    vertex_normals_kernel(const int32_t* begin, const int32_t* incident, int64_t count, const float* normals,
                          const float* angles, float* vertex_normals) {
  const int64_t vertex = int64_t{blockIdx.x} * kSumThreads + threadIdx.x;
  if (vertex >= count) return;
  float sum[3] = {0.0f, 0.0f, 0.0f};
  for (int32_t i = begin[vertex]; i < begin[vertex + 1]; ++i) {
    const int32_t corner = incident[i];
    const float angle = angles[corner];
    const float* normal = normals + 3 * int64_t{corner / 3};
#pragma unroll
    for (int k = 0; k < 3; ++k) sum[k] += angle * normal[k];
  }
#pragma unroll
  for (int k = 0; k < 3; ++k) vertex_normals[3 * vertex + k] = sum[k];
}

// Totals of all blocks, and the box of the mesh; one block. `root`: the boxes of the root's children.
__global__ void __launch_bounds__(kSumThreads)
    totals_kernel(const LeafSums* partial, int64_t count, const float* root, Found* found) {
  LeafSums sums = {0.0, 0.0, 0.0};
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) {
    sums.area += partial[i].area;
    sums.volume += partial[i].volume;
    sums.size += partial[i].size;
  }
  sums = {block_total<kSumThreads>(sums.area), block_total<kSumThreads>(sums.volume),
          block_total<kSumThreads>(sums.size)};
  if (threadIdx.x < 3) {
    const float *low = root + threadIdx.x * kWide, *high = root + (3 + threadIdx.x) * kWide;
    float least = low[0], most = high[0];
    for (int i = 1; i < kWide; ++i) least = fminf(least, low[i]), most = fmaxf(most, high[i]);
    found->root_low[threadIdx.x] = least;
    found->root_high[threadIdx.x] = most;
  }
  if (threadIdx.x != 0) return;
  found->area = sums.area;
  found->volume = sums.volume;
  found->size = sums.size;
}

struct SearchArrays {
  int32_t levels, level_begin[kMaxLevels + 1];
  const float *triangles, *boxes;
  int64_t faces;
};

// Casts a ray of a row, as the RayCaster of build/crossings.h does. Sixteen lanes test boxes and triangles.
struct RowRay {
  const SearchArrays& arrays;
  Point from, along;
  double inverse[3], least;

  __device__ RowRay(const SearchArrays& searched, Point start, Point way, double extent)
      : arrays(searched), from(start), along(way), least(kAtStart * extent) {
    const double ways[3] = {way.x, way.y, way.z};
#pragma unroll
    for (int k = 0; k < 3; ++k) inverse[k] = 1.0 / (::fabs(ways[k]) > 1e-12 ? ways[k] : 1e-12);
  }

  // Whether the ray meets a lane's box of a node.
  __device__ bool meets(int level, int32_t node, int lane) const {
    const float* box = arrays.boxes + int64_t{arrays.level_begin[level] + node} * kBoxStride + lane;
    const double start[3] = {from.x, from.y, from.z};
    double first = 0.0, last = INFINITY;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const float low = box[k * kWide], high = box[(3 + k) * kWide];
      const double in = ((inverse[k] > 0.0 ? low : high) - start[k]) * inverse[k];
      const double out = ((inverse[k] > 0.0 ? high : low) - start[k]) * inverse[k];
      first = in > first ? in : first;
      last = out < last ? out : last;
    }
    return first <= last;
  }

  // 1 if the ray crosses the triangle from the back, -1 from the front, 0 if it does not cross it.
  __device__ int crossing(int64_t slot) const {
    if (slot >= arrays.faces) return 0;
    const float* t = arrays.triangles + slot / kWide * kTriangleStride + slot % kWide;
    const auto row = [&](int k) { return static_cast<double>(t[k * kWide]); };
    const Point corner = {row(0), row(1), row(2)}, u = {row(3), row(4), row(5)}, v = {row(6), row(7), row(8)};
    const Point a = corner - from, b = (corner + u) - from, c = (corner + v) - from;
    const double ab = dot(along, cross(a, b)), bc = dot(along, cross(b, c)), ca = dot(along, cross(c, a));
    const double left = ::fmin(::fmin(ab, bc), ca), right = ::fmax(::fmax(ab, bc), ca);
    const Point normal = cross(u, v);
    const double rate = dot(normal, along), away = dot(normal, a);
    if (left < 0.0 && right >= 0.0) return 0;
    const bool ahead = rate > 0.0 ? away > least * rate : away < least * rate;
    return ahead ? (left >= 0.0 ? 1 : -1) : 0;
  }

  // The sum of all crossings; 0 unless `casts`.
  __device__ int cast(bool casts, const RowLanes& lanes) const {
    int32_t node[kMaxLevels];
    unsigned rest[kMaxLevels];  // Children to visit, by level.
    const int top = arrays.levels - 1;
    int level = casts ? top : arrays.levels;
    node[top] = 0;
    rest[top] = lanes.votes(casts && meets(top, 0, lanes.lane));
    int sum = 0;
    while (RowLanes::either(level <= top)) {
      const bool goes = level <= top, takes = goes && rest[level] != 0;
      const int at = level;
      int32_t child = 0;
      if (takes) {
        child = node[level] * kWide + __ffs(static_cast<int>(rest[level])) - 1;
        rest[level] &= rest[level] - 1;
      } else if (goes) {
        ++level;
      }
      if (takes && at == 0) sum += crossing(int64_t{child} * kWide + lanes.lane);
      const bool enters = takes && at > 0;
      const unsigned met = lanes.votes(enters && meets(at - 1, child, lanes.lane));
      if (enters) {
        level = at - 1;
        node[level] = child;
        rest[level] = met;
      }
    }
#pragma unroll
    for (int offset = kWide / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(kWholeWarp, sum, offset);
    return sum;
  }
};

// Sixteen lanes per place: is_enclosed() of build/solids.cpp, for a mesh of one part.
__global__ void __launch_bounds__(kRowThreads)
    enclosed_kernel(SearchArrays arrays, const int32_t* places, int64_t count, Found* found) {
  const int64_t which = int64_t{blockIdx.x} * kRows + threadIdx.x / kWide;
  const RowLanes lanes = RowLanes::of_thread();
  // Rays cannot be cast through positions that are not numbers.
  const bool is_finite = ::fabs(found->low[0]) < INFINITY;
  const int32_t slot = which < count && is_finite ? places[which] : -1;
  const float* t = arrays.triangles + (slot < 0 ? 0 : slot / kWide * kTriangleStride + slot % kWide);
  const auto row = [&](int k) { return Point{t[k * kWide], t[(k + 1) * kWide], t[(k + 2) * kWide]}; };
  const Point normal = cross(row(3), row(6)), from = place_on(row(0), row(3), row(6), which);
  const double length = ::sqrt(squared_length(normal));
  bool enclosed = slot >= 0 && length > 0.0;
  const Point out = enclosed ? 1.0 / length * normal : Point{0.0, 0.0, 1.0};
  const Point size = point_at(found->high) - point_at(found->low);
  const bool is_negative = is_inside_out(found->volume, ::sqrt(squared_length(size)), found->area);
  for (int ray = 0; ray < 2; ++ray) {
    const RowRay cast(arrays, from, out + 0.5 * direction_of(which + ray), found->extent);
    const int sum = cast.cast(enclosed, lanes);
    enclosed = enclosed && sum + (is_negative ? 1 : 0) != 0;
  }
  // Rows may write at the same time, but only this value.
  if (enclosed && lanes.lane == 0) atomicOr(&found->is_enclosed, 1);
}

unsigned blocks_over(int64_t count, int size) {
  return blocks_for(static_cast<std::size_t>(count), static_cast<unsigned>(size));
}

}  // namespace

Found refit(const Tree& tree, const Links& links, const GivenVertices& vertices, const RefitArrays& arrays,
            FoundOnHost& host, cudaStream_t stream) {
  links.complete.delay(stream);
  const int64_t leaves = tree.leaves, children = int64_t{tree.level_begin[1]} * kWide;
  const unsigned leaf_blocks = blocks_over(children, kRows);
  const DeviceBuffer<Bounds> bounds(kBoundBlocks, stream);
  const DeviceBuffer<LeafSums> sums(leaf_blocks, stream);
  const DeviceBuffer<float> angles(static_cast<std::size_t>(leaves) * kWide * 3, stream);
  const DeviceBuffer<Found> found(1, stream);
  launch(bounds_kernel, kBoundBlocks, kSumThreads, 0, stream, vertices.values, vertices.count, vertices.most,
         links.firsts.data(), links.left_out.data(), static_cast<int64_t>(links.left_out.size() / 3), bounds.data());
  launch(frame_kernel, 1, kSumThreads, 0, stream, bounds.data(), found.data());
  launch(positions_kernel, blocks_over(3 * links.distinct, kSumThreads), kSumThreads, 0, stream, vertices.values,
         links.sources.data(), links.distinct, found.data(), arrays.positions);
  const LeafArrays leaf = {tree.corners,   links.sources.data(), arrays.triangles, arrays.boxes,
                           arrays.normals, angles.data(),        sums.data()};
  launch(refit_leaves_kernel, leaf_blocks, kRowThreads, 0, stream, vertices.values, arrays.positions, found.data(),
         leaves, links.faces, leaf);
  fit_upper_boxes(tree, arrays.boxes, stream);
  launch(vertex_normals_kernel, blocks_over(links.distinct, kSumThreads), kSumThreads, 0, stream, links.begin.data(),
         links.incident.data(), links.distinct, arrays.normals, angles.data(), arrays.vertex_normals);
  const int root = tree.level_begin[tree.levels] - 1;
  launch(totals_kernel, 1, kSumThreads, 0, stream, sums.data(), int64_t{leaf_blocks},
         arrays.boxes + int64_t{root} * kBoxStride, found.data());
  SearchArrays searched = {tree.levels, {}, arrays.triangles, arrays.boxes, links.faces};
  std::copy(std::begin(tree.level_begin), std::end(tree.level_begin), searched.level_begin);
  const auto places = static_cast<int64_t>(links.places.size());
  launch(enclosed_kernel, blocks_over(places, kRows), kRowThreads, 0, stream, searched, links.places.data(), places,
         found.data());
  return host.fetch(found.data(), stream);
}

}  // namespace lumigrad::meshes
