// Meshes on the device: computes triangles and boxes from positions, level by level.
#include <algorithm>

#include "common/cuda/launch.h"
#include "meshes/build/stages.h"
#include "meshes/cuda/engine.h"
#include "meshes/cuda/lanes.cuh"

namespace lumigrad::meshes {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kGroups = kThreads / kWide;
constexpr int kTriangleStride = kTriangleFloats * kWide;
constexpr int kBoxStride = kBoxFloats * kWide;

struct BoxPair {
  float low[3], high[3];
};

// Encloses the boxes of all lanes; the first lane stores the result as child `child` of the nodes that begin at
// `boxes`.
__device__ void store_enclosing(BoxPair box, float margin, float* boxes, int64_t child, const RowLanes& lanes) {
  float* to = boxes + child / kWide * kBoxStride + child % kWide;
#pragma unroll
  for (int k = 0; k < 3; ++k) {
    const float low = lanes.least(box.low[k]), high = -lanes.least(-box.high[k]);
    if (lanes.lane == 0) to[k * kWide] = low - margin;
    if (lanes.lane == 0) to[(3 + k) * kWide] = high + margin;
  }
}

// The box of missing children, far from everything.
__device__ BoxPair missing_box() { return {{kFar, kFar, kFar}, {-kFar, -kFar, -kFar}}; }

// Sixteen lanes per leaf, including missing leaves; `places` is a multiple of kWide.
__global__ void __launch_bounds__(kThreads)
    leaves_kernel(const float* positions, float rounder, const int32_t* corners, int64_t leaves, int64_t places,
                  float margin, float* triangles, float* boxes) {
  const int64_t leaf = int64_t{blockIdx.x} * kGroups + threadIdx.x / kWide;
  if (leaf >= places) return;
  const RowLanes lanes = RowLanes::of_thread();
  BoxPair box = missing_box();
  const bool there = leaf < leaves;
  if (there) {
    const int32_t* at = corners + 3 * (leaf * kWide + lanes.lane);
    float* to = triangles + leaf * kTriangleStride + lanes.lane;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      const auto corner = [&](int i) { return on_grid(positions[3 * int64_t{at[i]} + k], rounder); };
      const float a = corner(0), b = corner(1), c = corner(2);
      to[k * kWide] = a;
      to[(3 + k) * kWide] = b - a;
      to[(6 + k) * kWide] = c - a;
      box.low[k] = fminf(fminf(a, b), c);
      box.high[k] = fmaxf(fmaxf(a, b), c);
    }
  }
  store_enclosing(box, there ? margin : 0.0f, boxes, leaf, lanes);
}

// Sixteen lanes per node of the level below, including missing nodes; `places` is a multiple of kWide.
__global__ void __launch_bounds__(kThreads)
    nodes_kernel(const float* below, int64_t nodes, int64_t places, float* boxes) {
  const int64_t node = int64_t{blockIdx.x} * kGroups + threadIdx.x / kWide;
  if (node >= places) return;
  const RowLanes lanes = RowLanes::of_thread();
  BoxPair box = missing_box();
  if (node < nodes) {
    const float* from = below + node * kBoxStride + lanes.lane;
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      box.low[k] = from[k * kWide];
      box.high[k] = from[(3 + k) * kWide];
    }
  }
  store_enclosing(box, 0.0f, boxes, node, lanes);
}

// Copies in pieces, so that the host's staging memory stays small and is reused.
template <class T>
DeviceBuffer<T> upload(const T* values, std::size_t count, DeviceStaging& staging, cudaStream_t stream) {
  constexpr std::size_t kPiece = (std::size_t{4} << 20) / sizeof(T);
  DeviceBuffer<T> buffer(count, stream);
  for (std::size_t begin = 0; begin < count; begin += kPiece) {
    const std::size_t length = std::min(kPiece, count - begin);
    staging.copy(buffer.data() + begin, values + begin, length * sizeof(T), stream);
  }
  return buffer;
}

void fit_boxes(const Tree& tree, const float* positions, float* triangles, float* boxes, cudaStream_t stream) {
  const auto places = [&](int level) { return int64_t{tree.level_begin[level + 1] - tree.level_begin[level]} * kWide; };
  const auto blocks = [](int64_t groups) { return blocks_for(static_cast<std::size_t>(groups), kGroups); };
  launch(leaves_kernel, blocks(places(0)), kThreads, 0, stream, positions, rounder_of(tree.extent), tree.corners,
         int64_t{tree.leaves}, places(0), kWiden * tree.extent, triangles, boxes);
  for (int level = 1; level < tree.levels; ++level) {
    const int64_t below = tree.level_begin[level - 1], begin = tree.level_begin[level];
    launch(nodes_kernel, blocks(places(level)), kThreads, 0, stream, boxes + below * kBoxStride, begin - below,
           places(level), boxes + begin * kBoxStride);
  }
}

}  // namespace

std::shared_ptr<const CudaMesh> CudaMesh::build(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream) {
  const Tree from = mesh.tree();
  const std::size_t slots = static_cast<std::size_t>(from.leaves) * kWide;
  auto order = std::make_shared<Order>();
  order->stream = stream;
  order->faces = upload(from.faces, slots, staging, stream);
  order->neighbours = upload(from.neighbours, 3 * slots, staging, stream);
  order->corners = upload(from.corners, 3 * slots, staging, stream);
  auto made = std::make_shared<CudaMesh>();
  made->order_ = std::move(order);
  made->fit(mesh, staging, stream);
  return made;
}

std::shared_ptr<const CudaMesh> CudaMesh::moved(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream) const {
  begin_use(stream);
  auto made = std::make_shared<CudaMesh>();
  made->order_ = order_;
  made->fit(mesh, staging, stream);
  return made;
}

CudaMesh::~CudaMesh() {
  for (const auto& [stream, used] : uses_) used.synchronize();
}

void CudaMesh::begin_use(cudaStream_t stream) const {
  if (!is_home(stream)) complete_->delay(stream);
}

void CudaMesh::end_use(cudaStream_t stream) const {
  if (is_home(stream)) return;
  const std::lock_guard lock(mutex_);
  const auto [used, is_first] = uses_.try_emplace(stream, stream);
  if (!is_first) used->second.record(stream);
}

void CudaMesh::fit(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream) {
  stream_ = stream;
  tree_ = mesh.tree();
  tree_.owner = this;
  const auto leaves = static_cast<std::size_t>(tree_.leaves);
  const auto nodes = static_cast<std::size_t>(tree_.level_begin[tree_.levels]);
  const auto& positions = mesh.surface().positions;
  normals_ = upload(tree_.normals, 3 * leaves * kWide, staging, stream);
  vertex_normals_ = upload(tree_.vertex_normals, positions.size(), staging, stream);
  if (tree_.dipoles != nullptr) dipoles_ = upload(tree_.dipoles, nodes * kDipoleFloats * kWide, staging, stream);
  positions_ = upload(positions.data(), positions.size(), staging, stream);
  triangles_ = DeviceBuffer<float>(leaves * kTriangleStride, stream);
  boxes_ = DeviceBuffer<float>(nodes * kBoxStride, stream);
  tree_.triangles = triangles_.data();
  tree_.boxes = boxes_.data();
  tree_.oriented = nullptr;
  tree_.dipoles = dipoles_.data();
  tree_.faces = order_->faces.data();
  tree_.normals = normals_.data();
  tree_.neighbours = order_->neighbours.data();
  tree_.corners = order_->corners.data();
  tree_.positions = positions_.data();
  tree_.vertex_normals = vertex_normals_.data();
  fit_boxes(tree_, positions_.data(), triangles_.data(), boxes_.data(), stream);
  complete_ = std::make_unique<DeviceEvent>(stream);
  // Work on this stream reads the order, which another stream may own.
  end_use(stream);
}

std::size_t CudaMesh::bytes() const {
  return order_->faces.bytes() + order_->neighbours.bytes() + order_->corners.bytes() + triangles_.bytes() +
         boxes_.bytes() + dipoles_.bytes() + positions_.bytes() + normals_.bytes() + vertex_normals_.bytes();
}

}  // namespace lumigrad::meshes
