"""A triangle mesh, registered once and searched many times."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import _native
from lumigrad.kernels.checks import finite_range
from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes.engine import CpuEngine, Engine, engine_for
from lumigrad.kernels.meshes.pose import MAX_COORDINATE


@dataclass(frozen=True)
class Report:
    """Properties of a mesh as given; lengths in metres, object frame.

    Attributes:
        vertices, faces: Numbers of vertices and faces as given.
        welded_vertices: Number of distinct vertex positions.
        degenerate_faces: Number of faces of zero area; queries ignore them.
        duplicate_faces: Number of faces with the corners of another face; queries ignore duplicates of equal
            orientation, and reversed duplicates of two-sided bodies if the remaining faces are closed and oriented.
        boundary_edges: Number of edges with one face.
        nonmanifold_edges: Number of edges with more than two faces.
        inconsistent_edges: Number of edges that two faces traverse in the same direction.
        closed: Whether every edge has two faces.
        oriented: Whether the two faces of every edge traverse it in opposite directions.
        low, high: Corners of the bounding box.
        volume: Signed volume, cubic metres: negative if faces point inward. Meaningless for an open mesh.
        area: Surface area, square metres.
        components: Number of connected components: faces joined by edges of two faces; where more faces meet at an
            edge, they are joined by vertices as given.
        overlapping_components: Number of closed and oriented components whose bounding boxes meet those of others.
        turned_components: Number of closed and oriented components that are inside out but are not cavities; the
            sign "auto" turns them.
        self_intersecting: Whether a component of a closed and oriented mesh was found to enclose points more than once,
            or from the wrong side: up to 1,024 points next to its faces are tested.
    """

    vertices: int
    faces: int
    welded_vertices: int
    degenerate_faces: int
    duplicate_faces: int
    boundary_edges: int
    nonmanifold_edges: int
    inconsistent_edges: int
    closed: bool
    oriented: bool
    low: tuple[float, float, float]
    high: tuple[float, float, float]
    volume: float
    area: float
    components: int
    overlapping_components: int
    turned_components: int
    self_intersecting: bool

    @property
    def simple(self) -> bool:
        """Whether the closest face tells inside from outside: nothing is open, and nothing was found enclosed twice."""
        return self.oriented and self.overlapping_components == 0 and not self.self_intersecting

    @staticmethod
    def of(found: Mapping[str, Any]) -> Report:
        """Converts the extension's report."""
        return Report(**found)


SIGNS = ("auto", "normals", "rays", "winding", "unsigned")
_NATIVE_SIGNS = {"unsigned": 0, "normals": 1, "rays": 2, "winding": 3}
# A hierarchy stores nine floats per triangle, which 32-bit integers index.
MAX_FACES = 2**27
# Memory of a tree beyond what it reports, measured with 2,000 trees of 12 and 72 faces.
_TREE_BYTES = 54 << 10
# The smallest extent, and the smallest mean size of triangles (the root of their area), metres: in smaller meshes
# float32 loses the squared areas of triangles.
_LEAST_EXTENT, _LEAST_SIZE = 1e-6, 5e-8
Claim = Callable[[int], None]
_Key = tuple[str, bool]  # The engine's key, and whether the tree has the data for winding numbers.


class _Trees:
    """The trees of one set of triangles, one per engine. `like` holds trees to refit in their order.

    After a refit on a device, `base` in host memory has the same faces, but earlier vertices, until it is needed with
    `vertices`, which are f64 [V, 3] on that device.
    """

    def __init__(self, base: Any, like: dict[_Key, Any], vertices: torch.Tensor | None = None) -> None:
        self.base = base
        self._like = like
        self._built: dict[_Key, Any] = {}
        self._vertices = vertices

    def of(self, engine: Engine, winding: bool) -> Any:
        """The tree for an engine; a tree with the data for winding numbers serves every policy."""
        if (engine.key, True) in self._built:
            return self._built[engine.key, True]
        key = engine.key, winding
        if key not in self._built:
            if winding:
                self.add_dipoles()
            self._built[key] = engine.tree(self.host(), self._like.pop(key, None))
        return self._built[key]

    def host(self) -> Any:
        """The mesh in host memory."""
        if self._vertices is not None:
            self.base = self.base.refitted(self._vertices.cpu().numpy())
            self._vertices = None
        return self.base

    def add_dipoles(self) -> None:
        """Computes the data for winding numbers, once."""
        self.base = self.host().with_dipoles()

    @property
    def bytes(self) -> int:
        """Memory of the mesh in host memory and of `vertices`."""
        vertices = self._vertices  # Another thread may need the mesh in host memory now.
        return int(self.base.bytes) + (0 if vertices is None else vertices.nbytes)

    def elsewhere(self) -> dict[_Key, Any]:
        """The trees outside host memory."""
        built = self._built.copy()  # Another thread may add a tree now.
        return {key: tree for key, tree in built.items() if key[0] != CpuEngine.key}

    def refittable(self, host: Any) -> dict[_Key, Any]:
        """Trees outside host memory that can be refitted to `host`, which has the same triangles after a move."""
        there = {**self._like, **self._built}
        return {} if host.rebuilt else {key: tree for key, tree in there.items() if key[0] != CpuEngine.key}

    def refitted(self, engine: Engine, vertices: torch.Tensor) -> tuple[Any, _Trees] | None:
        """Refits an engine's tree: what `Engine.refitted` finds, and the trees after it; None if the host must."""
        key = engine.key, False
        # Queries of the moved mesh would need data for winding numbers, which the host computes.
        if key not in self._built or (engine.key, True) in self._built:
            return None
        refitted = engine.refitted(self._built[key], self.base, vertices, MAX_COORDINATE)
        if refitted is None:
            return None
        found, copy = refitted
        trees = _Trees(self.base, self.refittable(found), copy)
        trees._like.pop(key, None)
        trees._built[key] = found.tree
        return found, trees


class Mesh:
    """Triangles and their bounding volume hierarchy; immutable, so that threads and worlds may share it.

    Attributes:
        report: Properties of the triangles as given.
        device: The device on which queries search the mesh.
        rebuilt: Whether `moved` rebuilt the hierarchy instead of refitting it.
        growth: The size of the leaves' boxes relative to the mesh's box, divided by that of the last rebuild: 1 when
            rebuilt, larger after moves.
    """

    report: Report
    device: torch.device
    rebuilt: bool
    growth: float
    _given: _Trees
    _upright: _Trees

    def __init__(self, found: Any, device: torch.device, given: _Trees, upright: _Trees | None = None) -> None:
        """Wraps trees; use `build` or `moved` instead. `found`: a `MeshTree`, or what `Engine.refitted` returns."""
        self.report = Report.of(found.report)
        self.device = device
        self.rebuilt = bool(found.rebuilt)
        self.growth = float(found.growth)
        self._given = given
        # The trees that "auto" searches, without components that are inside out.
        self._upright = upright or given
        self._solids: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()

    @staticmethod
    def _of(host: Any, device: torch.device, before: Mesh | None = None) -> Mesh:
        """Wraps a `MeshTree`. `before`: the mesh whose vertices moved."""
        given = _Trees(host, {} if before is None else before._given.refittable(host))
        upright = None
        if host.has_upright:
            other = host.upright()
            apart = before is not None and before._upright is not before._given
            upright = _Trees(other, before._upright.refittable(other) if before is not None and apart else {})
        return Mesh(host, device, given, upright)

    @staticmethod
    def build(
        vertices: torch.Tensor, faces: torch.Tensor, device: torch.device | None = None, claim: Claim | None = None
    ) -> Mesh:
        """Builds the hierarchy of a mesh.

        Args:
            vertices: f32 or f64 [V, 3], metres, in the object's frame.
            faces: i32 or i64 [F, 3] indices of vertices, counter-clockwise as seen from outside; on the same device.
            device: The device on which queries search the mesh; None: the device of the tensors. With another device,
                only the CPU's part of the work is done, on any thread; the first query does the rest.
            claim: Called with the number of faces to be made for the sign "auto", which needs another set of faces for
                a mesh with components that are inside out or in a room. An exception that it raises ends the build.

        Returns:
            The mesh.

        Raises:
            ArgumentError: A value is not finite or an index out of range, or no face has an area above 0.
        """
        _check_kind(vertices, None)
        positions = _checked_vertices(vertices)
        corners = _checked_faces(faces, positions.shape[0], vertices.device)
        try:
            host = _native.MeshTree.build(positions, corners)
        except ValueError:
            expected = "at least one face of area above 0: distinct corners that are not in a line"
            raise ArgumentError("faces", expected, f"{len(corners)} of zero area") from None
        _check_size(host)
        host = _with_upright(host, positions, None, claim)
        return Mesh._of(host, device or vertices.device)._on(vertices.device)

    def moved(self, vertices: torch.Tensor, claim: Claim | None = None) -> Mesh:
        """The same faces with other vertices; refits the hierarchy, or rebuilds it if a refit would slow queries down.

        Args:
            vertices: f32 or f64 [V, 3], as many as before, metres. On the mesh's device: if the mesh is one solid, the
                device refits it, and the host only if winding numbers are asked for. Or in host memory: then only the
                CPU's part of the work is done, on any thread; the first query does the rest.
            claim: As for `build`.

        Returns:
            A new mesh; this one is not changed.

        Raises:
            ArgumentError: The tensor has the wrong shape, type or device, a value is not finite, or no face has an
                area above 0.
        """
        _check_kind(vertices, self.report.vertices)
        refitted = self._refitted(vertices) if vertices.device == self.device else None
        if refitted is not None:
            return refitted
        positions = _checked_vertices(vertices)
        if vertices.device.type != "cpu" and vertices.device != self.device:
            raise ArgumentError(
                "vertices", f"a tensor on {self.device}, where the mesh is, or the cpu", f"one on {vertices.device}"
            )
        try:
            host = self._given.base.moved(positions)
            area = host.report["area"]
        except ValueError:
            area = 0.0
        if not area > 0.0:
            raise ArgumentError("vertices", "at least one face of area above 0", "none")
        _check_size(host)
        host = _with_upright(host, positions, self._given.base, claim)
        return Mesh._of(host, self.device, self)._on(vertices.device)

    def _refitted(self, vertices: torch.Tensor) -> Mesh | None:
        """The same faces with other vertices, if the mesh's device can refit its tree by itself."""
        engine = engine_for(self.device)
        # In host memory the lock is not needed, and another thread may hold it for long.
        if self._upright is not self._given or engine.key == CpuEngine.key:
            return None
        with self._lock:
            refitted = self._given.refitted(engine, vertices)
        if refitted is None:
            return None
        mesh = Mesh(refitted[0], self.device, refitted[1])
        # The host refuses vertices that are too close together.
        report = mesh.report
        is_small = max(np.subtract(report.high, report.low)) < _LEAST_EXTENT or _mean_size(report) < _LEAST_SIZE
        return None if is_small else mesh

    def _on(self, given: torch.device) -> Mesh:
        """Return this mesh, with its trees on its device if the tensors were given there."""
        if given == self.device and given.type != "cpu":
            self.solid(engine_for(given), "auto")
        return self

    @property
    def vertices(self) -> int:
        """The number of vertices as given."""
        return self.report.vertices

    @property
    def faces(self) -> int:
        """The number of faces as given."""
        return self.report.faces

    @property
    def bytes(self) -> int:
        """Memory in use, on the host and on the device."""
        trees = {id(trees): trees for trees in (self._given, self._upright)}.values()
        elsewhere = [tree for one in trees for tree in one.elsewhere().values()]
        return _TREE_BYTES + self._given.bytes + sum(int(tree.bytes) for tree in elsewhere)

    def policy(self, sign: str) -> tuple[str, bool]:
        """The method for the sign of distances, and whether to negate it.

        "auto" is "normals" if every component is closed, oriented and apart from the others, and "winding" otherwise.
        "auto" turns components that are inside out; if all are, it negates "normals" instead. Other values are
        returned unchanged.
        """
        if sign != "auto":
            return sign, False
        if self.report.simple:
            return "normals", self.report.turned_components > 0 and self._upright is self._given
        return "winding", False

    def prepare(self, sign: str) -> None:
        """Does the CPU's part of the work for queries with a sign, on any thread; otherwise `solid` does it."""
        with self._lock:
            if self.policy(sign)[0] == "winding":
                (self._upright if sign == "auto" else self._given).add_dipoles()

    def solid(self, engine: Engine, sign: str) -> Any:
        """The mesh as an obstacle without a pose, for an engine."""
        solid = self._solids.get((engine.key, sign))
        if solid is None:
            with self._lock:
                policy, turned = self.policy(sign)
                trees = self._upright if sign == "auto" else self._given
                solid = engine.solid(trees.of(engine, policy == "winding"), _NATIVE_SIGNS[policy], turned)
                self._solids[engine.key, sign] = solid
        return solid


def _with_upright(host: Any, positions: np.ndarray, before: Any, claim: Claim | None) -> Any:
    """Returns `host`, with the faces that "auto" searches added if they differ from its own."""
    count = host.upright_faces
    if not count:
        return host
    if claim is not None:
        claim(count)
    return host.with_upright(positions, before)


def _check_kind(vertices: torch.Tensor, count: int | None) -> None:
    """Checks the shape and the type of vertices."""
    expected = f"a float32 or float64 tensor of shape [{'V' if count is None else count}, 3]"
    if not isinstance(vertices, torch.Tensor):
        raise ArgumentError("vertices", expected, type(vertices).__name__)
    fits = vertices.dim() == 2 and vertices.shape[1] == 3 and (count is None or vertices.shape[0] == count)
    if not fits or vertices.dtype not in (torch.float32, torch.float64):
        actual = f"{str(vertices.dtype).removeprefix('torch.')} of shape {list(vertices.shape)}"
        raise ArgumentError("vertices", expected, actual)
    if vertices.shape[0] == 0:
        raise ArgumentError("vertices", "at least one vertex", "none")
    if vertices.shape[0] >= 2**31:
        raise ArgumentError("vertices", "fewer than 2**31 vertices", f"{vertices.shape[0]}")


def _checked_vertices(vertices: torch.Tensor) -> np.ndarray:
    """Checks the values of vertices; returns them as float64 in host memory."""
    low, high = finite_range("vertices", vertices.detach())
    if max(-low, high) > MAX_COORDINATE:
        raise ArgumentError("vertices", f"coordinates within {MAX_COORDINATE:g} m", f"{low:g} to {high:g}")
    host: np.ndarray = vertices.detach().to("cpu", torch.float64).contiguous().numpy()
    extent = float(np.ptp(host, axis=0).max(initial=0.0)) if len(host) else 0.0
    if 0.0 < extent < _LEAST_EXTENT:
        raise ArgumentError("vertices", f"an extent of at least {_LEAST_EXTENT:g} m", f"{extent:g} m; use larger units")
    return host


def _mean_size(report: Report) -> float:
    """Return the root of the mean area of the triangles, metres."""
    return math.sqrt(report.area / report.faces)


def _check_size(host: Any) -> None:
    """Checks the mean size of the triangles of a `MeshTree`."""
    size = _mean_size(Report.of(host.report))
    if size < _LEAST_SIZE:
        expected = f"triangles of a mean size of at least {_LEAST_SIZE:g} m"
        raise ArgumentError("vertices", expected, f"{size:.2g} m; use larger units")


def _checked_faces(faces: torch.Tensor, vertices: int, device: torch.device) -> np.ndarray:
    """Checks faces; returns them as int32 in host memory."""
    expected = "an int32 or int64 tensor of shape [F, 3]"
    if not isinstance(faces, torch.Tensor):
        raise ArgumentError("faces", expected, type(faces).__name__)
    if faces.dim() != 2 or faces.shape[1] != 3 or faces.dtype not in (torch.int32, torch.int64):
        actual = f"{str(faces.dtype).removeprefix('torch.')} of shape {list(faces.shape)}"
        raise ArgumentError("faces", expected, actual)
    if faces.device != device:
        raise ArgumentError("faces", f"a tensor on {device}, where vertices are", f"one on {faces.device}")
    if not 0 < faces.shape[0] <= MAX_FACES:
        raise ArgumentError("faces", f"1 to {MAX_FACES} faces", f"{faces.shape[0] or 'none'}")
    low, high = (int(value) for value in torch.aminmax(faces))
    if low < 0 or high >= vertices:
        raise ArgumentError("faces", f"indices of {vertices} vertices, 0 to {vertices - 1}", f"{low} to {high}")
    host: np.ndarray = faces.to("cpu", torch.int32).contiguous().numpy()
    return host
