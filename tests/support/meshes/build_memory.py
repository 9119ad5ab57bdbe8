"""Builds a mesh as the worker does, in a process of its own: prints its peak memory, and the predicted memory.

`python -m support.meshes.build_memory KIND` prints the kind's bytes per face.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from lumigrad.protos.tensors import PayloadReader, PayloadWriter
from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.core.turns import Turns
from lumigrad.server.device.memory import Beside, Cost
from lumigrad.server.scenes.mesh import MeshKind
from lumigrad.v1 import scene_pb2
from support.meshes import shapes
from support.meshes.case import MeshShape

_ROWS = 500


def mesh_of(kind: str, rows: int) -> MeshShape:
    """Two tori: "plain", one of them "turned" inside out, or both "in a room", which is open and winds against them."""
    one, other = shapes.torus(rows, rows), shapes.moved(shapes.torus(rows, rows), (5.0, 0.0, 0.0))
    if kind == "turned":
        other = shapes.turned_inside_out(other)
    if kind != "in a room":
        return shapes.join(one, other)
    walls = shapes.turned_inside_out(shapes.grid_box((20.0, 20.0, 20.0)))
    return shapes.join(one, other, MeshShape(walls.vertices, walls.faces[:-1]))


class Counted:
    """The worker's memory, reduced to what builds use of it."""

    def __init__(self) -> None:
        self.bytes = 0

    def beside(self, cost: Cost) -> Beside:
        """Counts the cost, which always fits."""
        self.bytes += cost.bytes
        return Beside(None, lambda: None)


def prepared(shape: MeshShape, memory: Any) -> Callable[[], Any]:
    """The work of a call that has received a mesh, before the device's thread takes over."""
    scene, writer = scene_pb2.Scene(), PayloadWriter()
    scene.mesh.vertices.CopyFrom(writer.add(np.ascontiguousarray(shape.vertices, np.float32)))
    scene.mesh.faces.CopyFrom(writer.add(np.ascontiguousarray(shape.faces, np.int32)))
    runtime: Any = SimpleNamespace(
        limits=Limits.of(Config()), transfer=SimpleNamespace(device=torch.device("cpu")), tenant="a", memory=memory,
        builds=Turns(), building=threading.Lock(),
    )  # fmt: skip
    owner: Any = SimpleNamespace(check=lambda: None, on_end=lambda end: None)
    payload = b"".join(bytes(part) for part in writer.buffers)
    prepare = MeshKind().arrival(scene, runtime, "scene.mesh").receive(PayloadReader(payload))
    return lambda: prepare(owner)


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{name}:"))


def main(kind: str) -> None:
    """Prints the bytes per face that the build of a mesh took, and those counted."""
    prepared(mesh_of(kind, 8), Counted())()
    shape, counted = mesh_of(kind, _ROWS), Counted()
    build = prepared(shape, counted)
    gc.collect()
    # Resets the peak of resident memory to the current value.
    Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS")
    make = build()
    print((_status("VmHWM") - before) / len(shape.faces), counted.bytes / len(shape.faces))
    del make


if __name__ == "__main__":
    main(sys.argv[1])
