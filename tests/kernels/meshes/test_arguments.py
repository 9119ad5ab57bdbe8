"""Invalid meshes, shapes, worlds and settings are refused by name, with the expected and the actual value."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from lumigrad.kernels.meshes import Cuboid, Grid, Instance, Settings, World
from support.meshes.query import FACES, VERTICES, tetrahedron, world
from support.refusals import refused

NAN, INF = float("nan"), float("inf")


def two_devices() -> World:
    grid = Grid(torch.ones(2, 2, 2), 0.1)
    object.__setattr__(grid, "distances", grid.distances.to("meta"))
    return World([Instance(tetrahedron()), Instance(grid)])


# Refused calls: the argument that is named, the call, and words of the error.
REFUSED: dict[str, tuple[str, Callable[[], object], tuple[str, ...]]] = {
    "flat vertices": ("vertices", lambda: tetrahedron(vertices=torch.rand(12)), ("[V, 3]", "12")),
    "no tensor": ("vertices", lambda: tetrahedron(vertices=VERTICES.tolist()), ("list",)),
    "half vertices": ("vertices", lambda: tetrahedron(vertices=VERTICES.half()), ("float16",)),
    "two coordinates": ("vertices", lambda: tetrahedron(vertices=torch.rand(4, 2)), ("4, 2",)),
    "no vertices": ("vertices", lambda: tetrahedron(vertices=torch.rand(0, 3)), ("none",)),
    "a vertex that is no number": ("vertices", lambda: tetrahedron(vertices=VERTICES * NAN), ("finite",)),
    "a vertex at infinity": ("vertices", lambda: tetrahedron(vertices=VERTICES + INF), ("finite",)),
    "a vertex far away": ("vertices", lambda: tetrahedron(vertices=VERTICES * 1e10), ("1e+09", "1e+10")),
    "faces as a list": ("faces", lambda: tetrahedron(faces=FACES.tolist()), ("list",)),
    "quads": ("faces", lambda: tetrahedron(faces=torch.zeros(2, 4, dtype=torch.int64)), ("[F, 3]", "2, 4")),
    "faces as numbers": ("faces", lambda: tetrahedron(faces=FACES.float()), ("int32", "float32")),
    "no faces": ("faces", lambda: tetrahedron(faces=FACES[:0]), ("none",)),
    "a corner that is not there": ("faces", lambda: tetrahedron(faces=FACES + 1), ("0 to 3", "1 to 4")),
    "a negative corner": ("faces", lambda: tetrahedron(faces=FACES - 1), ("0 to 3", "-1 to 2")),
    "a corner that 32 bits cannot hold": ("faces", lambda: tetrahedron(faces=FACES + 2**32), ("0 to 3",)),
    "faces without an area": ("faces", lambda: tetrahedron(faces=torch.tensor([[0, 0, 1], [2, 2, 2]])), ("area", "2")),
    "faces of one point": ("faces", lambda: tetrahedron(vertices=torch.ones(4, 3)), ("area",)),
    "two devices": ("faces", lambda: tetrahedron(faces=FACES.to("meta")), ("cpu", "meta")),
    "three vertices for four": ("vertices", lambda: tetrahedron().moved(VERTICES[:3]), ("[4, 3]", "3, 3")),
    "moved to whole numbers": ("vertices", lambda: tetrahedron().moved(VERTICES.int()), ("int32",)),
    "moved to no numbers": ("vertices", lambda: tetrahedron().moved(VERTICES * NAN), ("finite",)),
    "moved to one point": ("vertices", lambda: tetrahedron().moved(VERTICES * 0.0), ("area",)),
    "moved far away": ("vertices", lambda: tetrahedron().moved(VERTICES * 1e10), ("1e+09",)),
    "moved by a list": ("vertices", lambda: tetrahedron().moved(VERTICES.tolist()), ("list",)),
    "a flat cuboid": ("size", lambda: Cuboid((1.0, 0.0, 1.0)), ("above 0",)),
    "a cuboid of two edges": ("size", lambda: Cuboid((1.0, 1.0)), ("3 edges",)),  # type: ignore[arg-type]
    "a cuboid without end": ("size", lambda: Cuboid((1.0, 1.0, INF)), ("inf",)),
    "a cuboid of one number": ("size", lambda: Cuboid(1.0), ("1.0",)),  # type: ignore[arg-type]
    "a cuboid of text": ("size", lambda: Cuboid(("1", "b", "c")), ("'b'",)),  # type: ignore[arg-type]
    "a flat grid": ("distances", lambda: Grid(torch.ones(3, 3), 0.1), ("3, 3",)),
    "a thin grid": ("distances", lambda: Grid(torch.ones(3, 1, 3), 0.1), ("2 voxels", "3, 1, 3")),
    "a double grid": ("distances", lambda: Grid(torch.ones(3, 3, 3).double(), 0.1), ("float64",)),
    "a grid as a list": ("distances", lambda: Grid([[[1.0]]], 0.1), ("list",)),  # type: ignore[arg-type]
    "a grid with holes": ("distances", lambda: Grid(torch.ones(3, 3, 3) * NAN, 0.1), ("finite",)),
    "voxels without an edge": ("voxel_size", lambda: Grid(torch.ones(3, 3, 3), 0.0), ("above 0", "0.0")),
    "endless voxels": ("voxel_size", lambda: Grid(torch.ones(3, 3, 3), INF), ("inf",)),
    "a voxel of text": ("voxel_size", lambda: Grid(torch.ones(3, 3, 3), "small"), ("small",)),  # type: ignore[arg-type]
    "vertices for a shape": ("shape", lambda: Instance(VERTICES), ("Mesh", "Tensor")),  # type: ignore[arg-type]
    "six numbers": ("pose", lambda: Instance(Cuboid((1, 1, 1)), [0.0] * 6), ("7", "6 numbers")),
    "a matrix": ("pose", lambda: Instance(Cuboid((1, 1, 1)), torch.eye(4)), ("7", "tensor")),  # type: ignore[arg-type]
    "no rotation": ("pose", lambda: Instance(Cuboid((1, 1, 1)), [0.0] * 7), ("1e-6",)),
    "a pose that is no number": ("pose", lambda: Instance(Cuboid((1, 1, 1)), [NAN, 0, 0, 1, 0, 0, 0]), ("nan",)),
    "a pose far away": ("pose", lambda: Instance(Cuboid((1, 1, 1)), [1e10, 0, 0, 1, 0, 0, 0]), ("1e+09",)),
    "enabled by a number": ("enabled", lambda: Instance(Cuboid((1, 1, 1)), enabled=1), ("True",)),  # type: ignore[arg-type]
    "a negative environment": ("environment", lambda: Instance(Cuboid((1, 1, 1)), environment=-1), ("-1",)),
    "half an environment": ("environment", lambda: Instance(Cuboid((1, 1, 1)), environment=0.5), ("0.5",)),  # type: ignore[arg-type]
    "an unknown sign": ("sign", lambda: Instance(tetrahedron(), sign="parity"), ("winding", "parity")),
    "a sign for a cuboid": ("sign", lambda: Instance(Cuboid((1, 1, 1)), sign="rays"), ("meshes", "rays")),
    "one instance": ("instances", lambda: World(Instance(tetrahedron())), ("Instance",)),  # type: ignore[arg-type]
    "a shape": ("instances[1]", lambda: World([Instance(tetrahedron()), tetrahedron()]), ("Mesh",)),  # type: ignore[list-item]
    "no environment": ("environments", lambda: World([], 0), ("1 to", "0")),
    "too many environments": ("environments", lambda: World([], 2**21), ("2097152",)),
    "another environment": (
        "instances[0].environment",
        lambda: World([Instance(tetrahedron(), environment=2)], 2),
        ("below 2",),
    ),
    "shapes on two devices": ("instances[1].shape", lambda: two_devices(), ("cpu", "meta")),
    "a pose of nobody": ("poses", lambda: world().with_poses({2: [0, 0, 0, 1, 0, 0, 0]}), ("2 instances", "2")),
    "a pose by name": ("poses", lambda: world().with_poses({"box": [0, 0, 0, 1, 0, 0, 0]}), ("box",)),  # type: ignore[dict-item]
    "a short pose": ("poses[1]", lambda: world().with_poses({1: [0, 0, 0]}), ("3 numbers",)),
    "nobody switched on": ("enabled", lambda: world().with_enabled({-1: True}), ("-1",)),
    "switched on by a number": ("enabled[0]", lambda: world().with_enabled({0: 1}), ("True",)),  # type: ignore[dict-item]
    "unknown semantics": ("semantics", lambda: Settings(semantics="curobo2"), ("exact", "curobo2")),
    "negative activation": ("activation_distance", lambda: Settings(activation_distance=-0.1), (">= 0", "-0.1")),
    "endless activation": ("activation_distance", lambda: Settings(activation_distance=INF), ("inf",)),
    "activation as text": ("activation_distance", lambda: Settings(activation_distance="far"), ("far",)),
    "no largest distance": ("max_distance", lambda: Settings(max_distance=0.0), ("above 0",)),
    "any distance": ("max_distance", lambda: Settings(max_distance=INF), ("None", "inf")),
    "sweep by a number": ("sweep", lambda: Settings(sweep=1), ("True", "1")),
    "speed by a number": ("speed_metric", lambda: Settings(speed_metric=0), ("False", "0")),
    "three samples": ("samples", lambda: Settings(samples=3), ("power of two", "3")),
    "no samples": ("samples", lambda: Settings(samples=0), ("power of two",)),
    "too many samples": ("samples", lambda: Settings(samples=512), ("256", "512")),
    "half a sample": ("samples", lambda: Settings(samples=0.5), ("0.5",)),
    "too many steps": ("samples", lambda: Settings(**{"semantics": "curobo", "samples": 256}), ("255", "256")),
    "speed without time": ("time_step_s", lambda: Settings(speed_metric=True), ("speed_metric", "None")),
    "no time": ("time_step_s", lambda: Settings(time_step_s=0.0), ("seconds", "0.0")),
    "time as text": ("time_step_s", lambda: Settings(time_step_s="1"), ("seconds",)),
    "unknown reduction": ("reduction", lambda: Settings(reduction="mean"), ("sum", "mean")),
    "cuRobo's maximum": (
        "reduction",
        lambda: Settings(**{"semantics": "curobo", "reduction": "max"}),
        ("sum", "curobo"),
    ),
    "a swept field": ("sweep", lambda: Settings(**{"semantics": "curobo_field", "sweep": True}), ("curobo_field",)),
    "a fast field": (
        "speed_metric",
        lambda: Settings(**{"semantics": "curobo_field", "speed_metric": True, "time_step_s": 1.0}),
        ("curobo_field",),
    ),
    "endless weight": ("weight", lambda: Settings(weight=INF), ("finite", "inf")),
    "no weight": ("weight", lambda: Settings(weight=None), ("None",)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_spoiled_argument_is_named(name: str) -> None:
    argument, make, words = REFUSED[name]
    refused(make, argument, *words)
