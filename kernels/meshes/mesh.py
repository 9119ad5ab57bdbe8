"""A triangle mesh, registered once and searched many times."""

from __future__ import annotations

import threading
from collections.abc import Mapping
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
    """Properties of a mesh as it was given; lengths in metres, object frame.

    Attributes:
        vertices, faces: Numbers of vertices and faces as given.
        welded_vertices: Number of distinct vertex positions.
        degenerate_faces: Number of faces of zero area; queries ignore them.
        duplicate_faces: Number of faces with the corners of another face; queries ignore those of equal orientation.
        boundary_edges: Number of edges with one face.
        nonmanifold_edges: Number of edges with more than two faces.
        inconsistent_edges: Number of edges that two faces traverse in the same direction.
        closed: Whether every edge has two faces.
        oriented: Whether the two faces of every edge traverse it in opposite directions.
        low, high: Corners of the bounding box.
        volume: Signed volume, cubic metres: negative if faces point inward. Meaningless for an open mesh.
        area: Surface area, square metres.
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

    @staticmethod
    def of(found: Mapping[str, Any]) -> Report:
        """Converts the extension's report."""
        return Report(**found)


SIGNS = ("auto", "normals", "rays", "winding", "unsigned")
_NATIVE_SIGNS = {"unsigned": 0, "normals": 1, "rays": 2, "winding": 3}
# A hierarchy stores nine floats per triangle, which 32-bit integers index.
MAX_FACES = 2**27
# Memory of a tree beyond what it reports, measured with 2,000 trees of 12 and of 72 faces.
_TREE_BYTES = 54 << 10
_Tree = tuple[str, bool]  # The engine's key, and whether the tree has the data for winding numbers.


class Mesh:
    """Triangles and their bounding volume hierarchy; immutable, so that threads and worlds may share it.

    Attributes:
        report: Properties of the triangles as given.
        device: The device on which queries search it.
        rebuilt: Whether `moved` rebuilt the hierarchy instead of refitting it.
        growth: The size of the leaves' boxes relative to the mesh's box, divided by that of the last rebuild: 1 when
            rebuilt, larger after moves.
    """

    report: Report
    device: torch.device
    rebuilt: bool
    growth: float

    def __init__(self, host: Any, device: torch.device, like: dict[_Tree, Any] | None = None) -> None:
        """Wraps a `MeshTree`; use `build` or `moved` instead. `like` holds trees to refit in their order."""
        self.report = Report.of(host.report)
        self.device = device
        self.rebuilt = bool(host.rebuilt)
        self.growth = float(host.growth)
        self._host = host
        self._like = like or {}
        self._trees: dict[_Tree, Any] = {}
        self._solids: dict[tuple[str, str], Any] = {}
        self._lock = threading.Lock()
        if device.type != "cpu":
            self.solid(engine_for(device), "auto")

    @staticmethod
    def build(vertices: torch.Tensor, faces: torch.Tensor) -> Mesh:
        """Builds the hierarchy of a mesh, on the device of its tensors.

        Args:
            vertices: f32 or f64 [V, 3], metres, in the object's frame.
            faces: i32 or i64 [F, 3] indices of vertices, counter-clockwise as seen from outside.

        Returns:
            The mesh.

        Raises:
            ArgumentError: A value is not finite or an index out of range, or no face has an area above 0.
        """
        positions = _checked_vertices(vertices, None)
        corners = _checked_faces(faces, positions.shape[0], vertices.device)
        try:
            host = _native.MeshTree.build(positions, corners)
        except ValueError:
            expected = "at least one face of area above 0: distinct corners that are not in a line"
            raise ArgumentError("faces", expected, f"{len(corners)} of zero area") from None
        return Mesh(host, vertices.device)

    def moved(self, vertices: torch.Tensor) -> Mesh:
        """The same faces with other vertices; refits the hierarchy, or rebuilds it if a refit would slow queries down.

        Args:
            vertices: f32 or f64 [V, 3], as many as before, metres, on the mesh's device.

        Returns:
            A new mesh; this one is not changed.

        Raises:
            ArgumentError: The tensor has the wrong shape, type or device, a value is not finite, or no face has an
                area above 0.
        """
        positions = _checked_vertices(vertices, self.report.vertices)
        if vertices.device != self.device:
            raise ArgumentError(
                "vertices", f"a tensor on {self.device}, where the mesh is", f"one on {vertices.device}"
            )
        try:
            host = self._host.moved(positions)
            area = host.report["area"]
        except ValueError:
            area = 0.0
        if not area > 0.0:
            raise ArgumentError("vertices", "at least one face of area above 0", "none")
        if host.rebuilt:
            return Mesh(host, self.device)
        there = {**self._like, **self._trees}
        return Mesh(host, self.device, {kind: tree for kind, tree in there.items() if kind[0] != CpuEngine.key})

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
        elsewhere = [tree for (key, _), tree in self._trees.items() if key != CpuEngine.key]
        return _TREE_BYTES + int(self._host.bytes) + sum(int(tree.bytes) for tree in elsewhere)

    def policy(self, sign: str) -> tuple[str, bool]:
        """The method for the sign of distances, and whether to negate it.

        "auto" is "normals" if the mesh is closed and oriented, negated if its volume is negative, and "winding"
        otherwise; other values are returned as they are.
        """
        if sign != "auto":
            return sign, False
        if self.report.closed and self.report.oriented:
            return "normals", self.report.volume < 0.0
        return "winding", False

    def solid(self, engine: Engine, sign: str) -> Any:
        """The mesh as an obstacle without a pose, for an engine."""
        solid = self._solids.get((engine.key, sign))
        if solid is None:
            with self._lock:
                policy, turned = self.policy(sign)
                solid = engine.solid(self._tree(engine, policy == "winding"), _NATIVE_SIGNS[policy], turned)
                self._solids[engine.key, sign] = solid
        return solid

    def _tree(self, engine: Engine, winding: bool) -> Any:
        # A tree with the data for winding numbers can be used for every policy.
        if (engine.key, True) in self._trees:
            return self._trees[engine.key, True]
        kind = engine.key, winding
        if kind not in self._trees:
            if winding:
                self._host = self._host.with_dipoles()
            self._trees[kind] = engine.tree(self._host, self._like.pop(kind, None))
        return self._trees[kind]


def _checked_vertices(vertices: torch.Tensor, count: int | None) -> np.ndarray:
    """Checks vertices; returns them as float64 in host memory."""
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
    low, high = finite_range("vertices", vertices.detach())
    if max(-low, high) > MAX_COORDINATE:
        raise ArgumentError("vertices", f"coordinates within {MAX_COORDINATE:g} m", f"{low:g} to {high:g}")
    host: np.ndarray = vertices.detach().to("cpu", torch.float64).contiguous().numpy()
    return host


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
