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
    """Of a mesh as it was given; lengths in metres.

    Attributes:
        vertices, faces: As given.
        welded_vertices: Distinct positions.
        degenerate_faces: Without an area; no query finds them.
        duplicate_faces: With the corners of another. Repetitions of the same orientation are left out.
        boundary_edges: Of one face.
        nonmanifold_edges: Of more than two faces.
        inconsistent_edges: Of two faces that run along it in the same direction.
        closed: Every edge has two faces.
        oriented: The faces of every edge run along it in opposite directions.
        low, high: Corners of the bounding box.
        volume: Signed, cubic metres: negative if faces turn inward. Of an open mesh it means nothing.
        area: Square metres.
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
        """From the extension's."""
        return Report(**found)


SIGNS = ("auto", "normals", "rays", "winding", "unsigned")
_NATIVE_SIGNS = {"unsigned": 0, "normals": 1, "rays": 2, "winding": 3}
# Positions in a hierarchy are 32-bit numbers; nine floats for a triangle.
MAX_FACES = 2**27
# What a tree takes beside what it counts itself, measured with 2,000 of them with 12 and with 72 faces.
_TREE_BYTES = 54 << 10
_Tree = tuple[str, bool]  # A machine's key, and whether winding numbers can be had of it.


class Mesh:
    """Triangles and the hierarchy of boxes over them; it never changes, and threads and worlds may share it.

    Attributes:
        report: What registration found.
        device: Where it is searched.
        rebuilt: Whether `moved` had to build it anew.
        growth: How much larger the boxes of its leaves are, to that of the mesh, than when they were last built: 1,
            larger after moves.
    """

    report: Report
    device: torch.device
    rebuilt: bool
    growth: float

    def __init__(self, host: Any, device: torch.device, like: dict[_Tree, Any] | None = None) -> None:
        """Of a `MeshTree`; made by `build` and `moved`. `like` has trees whose order is to be kept."""
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
        """Registers a mesh, on the device of its tensors.

        Args:
            vertices: f32 or f64 [V, 3], metres, in the object's frame.
            faces: i32 or i64 [F, 3] indices of vertices, counter-clockwise seen from outside.

        Returns:
            The mesh.

        Raises:
            ArgumentError: A value is not finite or an index out of range; there is no face, or none with an area.
        """
        positions = _checked_vertices(vertices, None)
        corners = _checked_faces(faces, positions.shape[0], vertices.device)
        try:
            host = _native.MeshTree.build(positions, corners)
        except ValueError:
            expected = "at least one face with an area: distinct corners that are not in a line"
            raise ArgumentError("faces", expected, f"{len(corners)} without an area") from None
        return Mesh(host, vertices.device)

    def moved(self, vertices: torch.Tensor) -> Mesh:
        """The same faces with other vertices: fitted, or built anew where fitting would make queries slow.

        Args:
            vertices: f32 or f64 [V, 3] as many as before, metres, on the mesh's device.

        Returns:
            Another mesh; this one stays as it is.

        Raises:
            ArgumentError: The tensor does not fit, a value is not finite, or no face has an area.
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
            raise ArgumentError("vertices", "at least one face with an area", "none")
        if host.rebuilt:
            return Mesh(host, self.device)
        there = {**self._like, **self._trees}
        return Mesh(host, self.device, {kind: tree for kind, tree in there.items() if kind[0] != CpuEngine.key})

    @property
    def vertices(self) -> int:
        """How many were given."""
        return self.report.vertices

    @property
    def faces(self) -> int:
        """How many were given."""
        return self.report.faces

    @property
    def bytes(self) -> int:
        """Memory it holds, on the host and on the device."""
        elsewhere = [tree for (key, _), tree in self._trees.items() if key != CpuEngine.key]
        return _TREE_BYTES + int(self._host.bytes) + sum(int(tree.bytes) for tree in elsewhere)

    def policy(self, sign: str) -> tuple[str, bool]:
        """How inside is told from outside, and whether the answer is turned around.

        "auto" is "normals" where the mesh is closed and oriented, turned around if its volume is negative, and
        "winding" otherwise; all others are themselves.
        """
        if sign != "auto":
            return sign, False
        if self.report.closed and self.report.oriented:
            return "normals", self.report.volume < 0.0
        return "winding", False

    def solid(self, engine: Engine, sign: str) -> Any:
        """The mesh as an obstacle of a machine that is not yet placed."""
        solid = self._solids.get((engine.key, sign))
        if solid is None:
            with self._lock:
                policy, turned = self.policy(sign)
                solid = engine.solid(self._tree(engine, policy == "winding"), _NATIVE_SIGNS[policy], turned)
                self._solids[engine.key, sign] = solid
        return solid

    def _tree(self, engine: Engine, winding: bool) -> Any:
        # A tree with what winding numbers need serves every policy.
        if (engine.key, True) in self._trees:
            return self._trees[engine.key, True]
        kind = engine.key, winding
        if kind not in self._trees:
            if winding:
                self._host = self._host.with_dipoles()
            self._trees[kind] = engine.tree(self._host, self._like.pop(kind, None))
        return self._trees[kind]


def _checked_vertices(vertices: torch.Tensor, count: int | None) -> np.ndarray:
    """Float64 in host memory."""
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
    """Int32 in host memory."""
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
