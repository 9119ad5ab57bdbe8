// Meshes on the device: computes triangles and boxes from positions, level by level.
#include "common/cuda/launch.h"
#include "meshes/cuda/boxes.cuh"
#include "meshes/cuda/engine.h"
#include "meshes/cuda/upload.h"

namespace lumigrad::meshes {
namespace {

constexpr unsigned kThreads = 128;
constexpr unsigned kGroups = kThreads / kWide;
// Sixteen lanes per leaf, including missing leaves; `places` is a multiple of kWide.
__global__ void __launch_bounds__(kThreads)
    leaves_kernel(const float* positions, float rounder, const int32_t* corners, int64_t leaves, int64_t places,
                  float margin, float* triangles, float* boxes) {
  const int64_t leaf = int64_t{blockIdx.x} * kGroups + threadIdx.x / kWide;
  if (leaf >= places) return;
  const RowLanes lanes = RowLanes::of_thread();
  const bool there = leaf < leaves;
  const BoxPair box = there ? store_triangle(positions, rounder, corners, leaf, triangles, lanes) : missing_box();
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

// The children of all nodes of a level.
int64_t places_of(const Tree& tree, int level) {
  return int64_t{tree.level_begin[level + 1] - tree.level_begin[level]} * kWide;
}
unsigned blocks_of(int64_t groups) { return blocks_for(static_cast<std::size_t>(groups), kGroups); }

void fit_boxes(const Tree& tree, const float* positions, float* triangles, float* boxes, cudaStream_t stream) {
  const int64_t places = places_of(tree, 0);
  launch(leaves_kernel, blocks_of(places), kThreads, 0, stream, positions, rounder_of(tree.extent), tree.corners,
         int64_t{tree.leaves}, places, kWiden * tree.extent, triangles, boxes);
  fit_upper_boxes(tree, boxes, stream);
}

}  // namespace

void fit_upper_boxes(const Tree& tree, float* boxes, cudaStream_t stream) {
  for (int level = 1; level < tree.levels; ++level) {
    const int64_t below = tree.level_begin[level - 1], begin = tree.level_begin[level];
    launch(nodes_kernel, blocks_of(places_of(tree, level)), kThreads, 0, stream, boxes + below * kBoxStride,
           begin - below, places_of(tree, level), boxes + begin * kBoxStride);
  }
}

std::shared_ptr<const CudaMesh> CudaMesh::build(const Mesh& mesh, DeviceStaging& staging, cudaStream_t stream) {
  const Tree from = mesh.tree();
  const std::size_t slots = static_cast<std::size_t>(from.leaves) * kWide;
  auto order = std::make_shared<Order>();
  order->stream = stream;
  order->topology = mesh.shared_topology();
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
  tree_ = mesh.tree();
  const auto leaves = static_cast<std::size_t>(tree_.leaves);
  const auto nodes = static_cast<std::size_t>(tree_.level_begin[tree_.levels]);
  const auto& positions = mesh.surface().positions;
  normals_ = upload(tree_.normals, 3 * leaves * kWide, staging, stream);
  vertex_normals_ = upload(tree_.vertex_normals, positions.size(), staging, stream);
  if (tree_.dipoles != nullptr) dipoles_ = upload(tree_.dipoles, nodes * kDipoleFloats * kWide, staging, stream);
  positions_ = upload(positions.data(), positions.size(), staging, stream);
  place(stream);
  fit_boxes(tree_, positions_.data(), triangles_.data(), boxes_.data(), stream);
  finish();
}

void CudaMesh::place(cudaStream_t stream) {
  stream_ = stream;
  triangles_ = DeviceBuffer<float>(static_cast<std::size_t>(tree_.leaves) * kTriangleStride, stream);
  boxes_ = DeviceBuffer<float>(static_cast<std::size_t>(tree_.level_begin[tree_.levels]) * kBoxStride, stream);
  tree_.owner = this;
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
}

void CudaMesh::finish() {
  complete_ = std::make_unique<DeviceEvent>(stream_);
  // Work on this stream reads the order, which another stream may own.
  end_use(stream_);
}

const Links& CudaMesh::Order::links_for(const Mesh& mesh, DeviceStaging& staging, cudaStream_t on) const {
  const std::lock_guard lock(mutex);
  if (links == nullptr) links = std::make_unique<const Links>(mesh, staging, on);
  return *links;
}

std::optional<Refit> CudaMesh::refitted(const Mesh& base, const double* vertices, double most, CudaWorkspace& workspace,
                                        cudaStream_t stream) const {
  if (base.shared_topology() != order_->topology) return std::nullopt;
  begin_use(stream);
  const Links& links = order_->links_for(base, workspace.staging, stream);
  auto made = std::make_shared<CudaMesh>();
  made->order_ = order_;
  made->tree_ = base.tree();
  made->normals_ = DeviceBuffer<float>(3 * static_cast<std::size_t>(tree_.leaves) * kWide, stream);
  made->positions_ = DeviceBuffer<float>(positions_.size(), stream);
  made->vertex_normals_ = DeviceBuffer<float>(positions_.size(), stream);
  made->place(stream);
  const RefitArrays arrays = {made->triangles_.data(), made->boxes_.data(), made->positions_.data(),
                              made->normals_.data(), made->vertex_normals_.data()};
  const Found found =
      refit(made->tree_, links, {vertices, base.report().vertices, most}, arrays, workspace.found, stream);
  made->finish();
  Refit result{nullptr, base.report(), base.growth_of(found.size, found.root_low, found.root_high)};
  if (!found.report(result.report) || !(result.growth <= kWorstGrowth)) return std::nullopt;
  found.place(made->tree_);
  result.mesh = std::move(made);
  return result;
}

std::size_t CudaMesh::Order::link_bytes() const {
  const std::lock_guard lock(mutex);
  return links == nullptr ? 0 : links->bytes();
}

std::size_t CudaMesh::bytes() const {
  return order_->faces.bytes() + order_->neighbours.bytes() + order_->corners.bytes() + triangles_.bytes() +
         boxes_.bytes() + dipoles_.bytes() + positions_.bytes() + normals_.bytes() + vertex_normals_.bytes() +
         order_->link_bytes();
}

}  // namespace lumigrad::meshes
