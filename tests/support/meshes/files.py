"""Meshes of real objects, outside the repository in the folder LUMIGRAD_TEST_DATA."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from support.meshes.case import MeshShape
from support.spheres.oracle import VARIABLE

ABSENT = f"set {VARIABLE} to the folder that holds meshes/ to test with the parts of robots and machines"


def files() -> list[Path]:
    """The files of meshes, of a megabyte at most; empty if the data is absent."""
    root = os.environ.get(VARIABLE)
    found = sorted(Path(root, "meshes").rglob("*")) if root else []
    kinds = (".obj", ".stl", ".ply")
    return [path for path in found if path.suffix.lower() in kinds and path.stat().st_size < 1 << 20]


def load(path: Path) -> MeshShape:
    """Reads a file without merging or removing anything; skips the test if no library can read it."""
    trimesh = pytest.importorskip("trimesh")
    mesh = trimesh.load(path, process=False, force="mesh")
    return MeshShape(np.asarray(mesh.vertices, np.float64), np.asarray(mesh.faces, np.int32))
