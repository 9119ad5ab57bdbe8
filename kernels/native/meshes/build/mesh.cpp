#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "meshes/build/face.h"
#include "meshes/build/partition.h"
#include "meshes/build/stages.h"
#include "meshes/mesh.h"

namespace lumigrad::meshes {
namespace {

Array<int32_t> copy_of(const int32_t* values, int64_t count) {
  Array<int32_t> copy(static_cast<std::size_t>(count));
  const int parts = parts_for(count, 1 << 18);
  for_parts(parts, [&](int p) {
    std::copy(values + count * p / parts, values + count * (p + 1) / parts, copy.begin() + count * p / parts);
  });
  return copy;
}

// Puts the faces into the order of the slots. Returns the faces that share their corners with another face.
Twins put_in_order(FaceList& list, Topology& topology, Report& report) {
  order_triangles(list.centroids.data(), static_cast<int64_t>(list.centroids.size()));
  take_faces(list, topology);
  return pair_edges(topology, report);
}

Array<Centroid> without(const std::vector<int32_t>& dropped, const Array<Centroid>& all) {
  Array<Centroid> kept(all.size() - dropped.size());
  auto next = dropped.begin();
  Centroid* to = kept.begin();
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (next != dropped.end() && static_cast<std::size_t>(*next) == i) {
      ++next;
    } else {
      *to++ = all[i];
    }
  }
  return kept;
}

// Drops faces that repeat other faces, unless edges would then have three faces: in this case they belong to other
// parts, for example of two adjacent boxes, one of them mirrored. Returns the faces that share their corners with
// another face.
Twins drop_repeated(const Twins& twins, FaceList& list, Topology& topology, Report& report) {
  const int64_t duplicates = report.duplicate_faces;
  Array<Centroid> all = std::move(list.centroids);
  list.centroids = without(twins.repeated, all);
  Twins left = put_in_order(list, topology, report);
  if (report.boundary_edges == 0 && report.nonmanifold_edges > 0) {
    list.centroids = std::move(all);
    left = put_in_order(list, topology, report);
  }
  report.duplicate_faces = duplicates;
  return left;
}

// Drops the back faces of two-sided bodies.
void drop_backs(const Twins& twins, FaceList& list, Topology& topology, Report& report) {
  Sides sides(topology, twins.opposed);
  if (sides.backs().empty()) return;
  const int64_t duplicates = report.duplicate_faces;
  const Array<Centroid> all = std::move(list.centroids);
  do {
    list.centroids = without(sides.backs(), all);
    put_in_order(list, topology, report);
  } while (sides.find_open(topology));
  report.duplicate_faces = duplicates;
}

// Puts the faces into the order of the slots, without repeated faces and back faces.
void arrange(FaceList& list, Topology& topology, Report& report) {
  Twins twins = put_in_order(list, topology, report);
  if (!twins.repeated.empty()) twins = drop_repeated(twins, list, topology, report);
  if (twins.repeated.empty() && !twins.opposed.empty()) drop_backs(twins, list, topology, report);
}

// Whether welded vertices still coincide, and degenerate faces are still degenerate.
bool same_faces(const double* vertices, const int32_t* faces, const Topology& topology) {
  const auto at = [&](int64_t v) { return vertices + 3 * v; };
  const auto point = [&](int32_t v) { return point_at(at(v)); };
  std::atomic<bool> same{true};
  const int64_t count = static_cast<int64_t>(topology.welded.size());
  const int parts = parts_for(count);
  for_parts(parts, [&](int p) {
    bool mine = true;
    for (int64_t v = count * p / parts; v < count * (p + 1) / parts; ++v) {
      const int64_t source = topology.sources[topology.welded[v]];
      mine &= source == v || std::equal(at(v), at(v) + 3, at(source));
    }
    if (!mine) same.store(false, std::memory_order_relaxed);
  });
  return same && std::none_of(topology.left_out.begin(), topology.left_out.end(), [&](int64_t f) {
           return has_area(point(faces[3 * f]), point(faces[3 * f + 1]), point(faces[3 * f + 2]));
         });
}

// The total area of the leaves' boxes relative to the area of the mesh's box. Like the cost of a search, it does not
// change if the whole mesh is scaled.
double relative_size(double size, const float* low, const float* high) {
  double edge[3];
  for (int k = 0; k < 3; ++k) edge[k] = static_cast<double>(high[k]) - low[k];
  return size / (edge[0] * edge[1] + edge[1] * edge[2] + edge[2] * edge[0]);
}

}  // namespace

std::size_t Topology::bytes() const {
  return welded.bytes() + sources.bytes() + owners.bytes() + numbers.bytes() + corners.bytes() + neighbours.bytes() +
         left_out.size() * sizeof(int32_t) + parts.bytes() + solid.size();
}

std::shared_ptr<Mesh> Mesh::assemble(const double* vertices, int64_t count, const int32_t* faces, int64_t face_count,
                                     std::shared_ptr<const Array<int32_t>> originals) {
  const bool inspected = originals == nullptr;
  auto mesh = std::make_shared<Mesh>();
  mesh->originals_ = std::move(originals);
  auto topology = std::make_shared<Topology>();
  Report& report = mesh->report_;
  weld(vertices, count, *topology);
  FaceList list = list_faces(vertices, faces, face_count, *topology);
  if (list.centroids.size() == 0) throw std::invalid_argument("no face of the mesh has an area");
  if (inspected) {
    arrange(list, *topology, report);
    find_parts(faces, report, *topology);
  } else {
    put_in_order(list, *topology, report);
    for (int32_t& number : topology->numbers) number = (*mesh->originals_)[number];
  }
  assign_owners(*topology);
  report.vertices = count;
  report.faces = face_count;
  report.welded_vertices = topology->distinct;
  report.degenerate_faces = static_cast<int64_t>(topology->left_out.size());
  mesh->faces_ = std::make_shared<const Array<int32_t>>(copy_of(faces, 3 * face_count));
  mesh->topology_ = std::move(topology);
  mesh->fit(vertices);
  mesh->built_size_ = relative_size(mesh->leaves_->size, mesh->leaves_->low, mesh->leaves_->high);
  mesh->rebuilt_ = true;
  return mesh;
}

std::shared_ptr<const Mesh> Mesh::build(const double* vertices, int64_t count, const int32_t* faces,
                                        int64_t face_count) {
  auto mesh = assemble(vertices, count, faces, face_count, nullptr);
  mesh->rebuilt_ = false;
  return mesh;
}

void Mesh::fit(const double* vertices) {
  auto surface = std::make_shared<Surface>();
  const Points points = place(vertices, *topology_, *surface, report_);
  auto leaves = fit_leaves(points, *topology_, *surface, report_);
  fit_nodes(*leaves);
  if (originals_ == nullptr) {
    turned_ = inspect_parts(points, *topology_, *leaves, surface->extent, report_);
    solid_weight_ = weigh_solids(points, *topology_);
  }
  surface_ = std::move(surface);
  leaves_ = std::move(leaves);
}

std::shared_ptr<Mesh> Mesh::fitted(const double* vertices) const {
  auto mesh = std::make_shared<Mesh>(*this);
  mesh->rebuilt_ = false;
  mesh->fit(vertices);
  mesh->growth_ = growth_of(mesh->leaves_->size, mesh->leaves_->low, mesh->leaves_->high);
  return mesh;
}

std::shared_ptr<Mesh> Mesh::refit(const double* vertices) const {
  const auto rebuilt = [&] { return assemble(vertices, report_.vertices, faces_->data(), report_.faces, originals_); };
  if (!same_faces(vertices, faces_->data(), *topology_)) return rebuilt();
  auto mesh = fitted(vertices);
  if (mesh->leaves_->turned || !(mesh->growth_ <= kWorstGrowth)) return rebuilt();
  if (dipoles_ != nullptr) {
    mesh->dipoles_ = std::make_shared<const Array<float>>(fit_dipoles(*mesh->leaves_, topology_->faces()));
  }
  return mesh;
}

std::shared_ptr<const Mesh> Mesh::moved(const double* vertices) const {
  auto mesh = refit(vertices);
  mesh->upright_ = nullptr;
  return mesh;
}

std::shared_ptr<const Mesh> Mesh::refitted(const double* vertices) const {
  auto mesh = fitted(vertices);
  mesh->upright_ = nullptr;
  mesh->dipoles_ = nullptr;
  return mesh;
}

bool Mesh::is_one_solid() const {
  const Topology& t = *topology_;
  return report_.simple() && t.part_count == 1 && t.solid[0] != 0 && originals_ == nullptr;
}

double Mesh::growth_of(double size, const float* low, const float* high) const {
  return relative_size(size, low, high) / built_size_;
}

int64_t Mesh::upright_faces() const {
  const Report& r = report_;
  const bool turns = r.turned_components > 0 && !(r.simple() && r.turned_components == r.components);
  if (!turns && solid_weight_ == 1) return 0;
  int64_t count = 0;
  for (int64_t slot = 0; slot < topology_->faces(); ++slot) count += weight_of(topology_->part_of(slot));
  return count;
}

std::shared_ptr<const Mesh> Mesh::with_upright(const double* vertices, const Mesh* before) const {
  auto mesh = std::make_shared<Mesh>(*this);
  const bool is_same = before != nullptr && before->turned_ == turned_ && before->solid_weight_ == solid_weight_;
  const bool fits = !rebuilt_ && is_same && before->upright_ != nullptr;
  mesh->upright_ = fits ? before->upright_->refit(vertices) : make_upright(vertices);
  return mesh;
}

std::shared_ptr<const Mesh> Mesh::make_upright(const double* vertices) const {
  std::vector<int32_t> faces, originals;
  faces.reserve(static_cast<std::size_t>(3 * solid_weight_ * topology_->faces()));
  originals.reserve(static_cast<std::size_t>(solid_weight_ * topology_->faces()));
  for (int64_t slot = 0; slot < topology_->faces(); ++slot) {
    const int32_t part = topology_->part_of(slot), number = topology_->numbers[slot];
    const int32_t* face = faces_->data() + 3ll * number;
    const bool turned = !turned_.empty() && turned_[part] != 0;
    for (int i = 0; i < weight_of(part); ++i) {
      faces.insert(faces.end(), {face[0], face[turned ? 2 : 1], face[turned ? 1 : 2]});
      originals.push_back(number);
    }
  }
  const auto count = static_cast<int64_t>(originals.size());
  return assemble(vertices, report_.vertices, faces.data(), count,
                  std::make_shared<const Array<int32_t>>(copy_of(originals.data(), count)));
}

std::shared_ptr<const Mesh> Mesh::upright() const { return upright_ != nullptr ? upright_ : shared_from_this(); }

std::shared_ptr<const Mesh> Mesh::with_dipoles() const {
  if (dipoles_ != nullptr) return shared_from_this();
  auto mesh = std::make_shared<Mesh>(*this);
  mesh->dipoles_ = std::make_shared<const Array<float>>(fit_dipoles(*leaves_, topology_->faces()));
  return mesh;
}

Tree Mesh::tree() const {
  Tree tree{};
  tree.leaves = leaves_->shape.leaves;
  tree.levels = leaves_->shape.levels;
  std::copy(std::begin(leaves_->shape.level_begin), std::end(leaves_->shape.level_begin), tree.level_begin);
  std::copy(surface_->centre, surface_->centre + 3, tree.centre);
  tree.extent = surface_->extent;
  std::copy(leaves_->low, leaves_->low + 3, tree.low);
  std::copy(leaves_->high, leaves_->high + 3, tree.high);
  tree.inverted = report_.volume < 0.0;
  tree.triangles = leaves_->triangles.data();
  tree.boxes = leaves_->boxes.data();
  tree.oriented = leaves_->oriented.data();
  tree.dipoles = dipoles_ == nullptr ? nullptr : dipoles_->data();
  tree.faces = topology_->numbers.data();
  tree.normals = surface_->normals.data();
  tree.neighbours = topology_->neighbours.data();
  tree.corners = topology_->corners.data();
  tree.positions = surface_->positions.data();
  tree.vertex_normals = surface_->vertex_normals.data();
  return tree;
}

std::size_t Mesh::bytes() const {
  return faces_->bytes() + topology_->bytes() + surface_->bytes() + leaves_->triangles.bytes() +
         leaves_->boxes.bytes() + leaves_->oriented.bytes() + (dipoles_ == nullptr ? 0 : dipoles_->bytes()) +
         (originals_ == nullptr ? 0 : originals_->bytes()) + (upright_ == nullptr ? 0 : upright_->bytes());
}

}  // namespace lumigrad::meshes
