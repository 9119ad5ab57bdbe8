"""Invalid meshes, shapes, worlds and settings are refused by name, with the expected and the actual value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from lumigrad.kernels.meshes import Cuboid, Grid, Instance, Settings, World
from support.meshes.query import FACES, VERTICES, tetrahedron, world
from support.refusals import refused

NAN, INF = float("nan"), float("inf")


MESHES: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "flat vertices": ("vertices", {"vertices": torch.rand(12)}, ("[V, 3]", "12")),
    "no tensor": ("vertices", {"vertices": VERTICES.tolist()}, ("list",)),
    "half vertices": ("vertices", {"vertices": VERTICES.half()}, ("float16",)),
    "two coordinates": ("vertices", {"vertices": torch.rand(4, 2)}, ("4, 2",)),
    "no vertices": ("vertices", {"vertices": torch.rand(0, 3)}, ("none",)),
    "a vertex that is no number": ("vertices", {"vertices": VERTICES * NAN}, ("finite",)),
    "a vertex at infinity": ("vertices", {"vertices": VERTICES + INF}, ("finite",)),
    "a vertex far away": ("vertices", {"vertices": VERTICES * 1e10}, ("1e+09", "1e+10")),
    "faces as a list": ("faces", {"faces": FACES.tolist()}, ("list",)),
    "quads": ("faces", {"faces": torch.zeros(2, 4, dtype=torch.int64)}, ("[F, 3]", "2, 4")),
    "faces as numbers": ("faces", {"faces": FACES.float()}, ("int32", "float32")),
    "no faces": ("faces", {"faces": FACES[:0]}, ("none",)),
    "a corner that is not there": ("faces", {"faces": FACES + 1}, ("0 to 3", "1 to 4")),
    "a negative corner": ("faces", {"faces": FACES - 1}, ("0 to 3", "-1 to 2")),
    "a corner that 32 bits cannot hold": ("faces", {"faces": FACES + 2**32}, ("0 to 3",)),
    "faces without an area": ("faces", {"faces": torch.tensor([[0, 0, 1], [2, 2, 2]])}, ("area", "2")),
    "faces of one point": ("faces", {"vertices": torch.ones(4, 3)}, ("area",)),
    "two devices": ("faces", {"faces": FACES.to("meta")}, ("cpu", "meta")),
}


@pytest.mark.parametrize("name", MESHES)
def test_spoiled_mesh_is_named(name: str) -> None:
    argument, changes, words = MESHES[name]
    refused(lambda: tetrahedron(**changes), argument, *words)


@pytest.mark.parametrize(
    ("vertices", "words"),
    [
        (VERTICES[:3], ("[4, 3]", "3, 3")),
        (VERTICES.int(), ("int32",)),
        (VERTICES * NAN, ("finite",)),
        (VERTICES * 0.0, ("area",)),
        (VERTICES * 1e10, ("1e+09",)),
        (VERTICES.tolist(), ("list",)),
    ],
)
def test_spoiled_move_is_named(vertices: Any, words: tuple[str, ...]) -> None:
    mesh = tetrahedron()
    refused(lambda: mesh.moved(vertices), "vertices", *words)


SHAPES: dict[str, tuple[str, Callable[[], object], tuple[str, ...]]] = {
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
}


@pytest.mark.parametrize("name", SHAPES)
def test_spoiled_shape_is_named(name: str) -> None:
    argument, make, words = SHAPES[name]
    refused(make, argument, *words)


WORLDS: dict[str, tuple[str, Callable[[], object], tuple[str, ...]]] = {
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
}


def two_devices() -> World:
    grid = Grid(torch.ones(2, 2, 2), 0.1)
    object.__setattr__(grid, "distances", grid.distances.to("meta"))
    return World([Instance(tetrahedron()), Instance(grid)])


@pytest.mark.parametrize("name", WORLDS)
def test_spoiled_world_is_named(name: str) -> None:
    argument, make, words = WORLDS[name]
    refused(make, argument, *words)


SETTINGS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "unknown semantics": ("semantics", {"semantics": "curobo2"}, ("exact", "curobo2")),
    "negative activation": ("activation_distance", {"activation_distance": -0.1}, (">= 0", "-0.1")),
    "endless activation": ("activation_distance", {"activation_distance": INF}, ("inf",)),
    "activation as text": ("activation_distance", {"activation_distance": "far"}, ("far",)),
    "no distance": ("max_distance", {"max_distance": 0.0}, ("above 0",)),
    "any distance": ("max_distance", {"max_distance": INF}, ("None", "inf")),
    "sweep by a number": ("sweep", {"sweep": 1}, ("True", "1")),
    "speed by a number": ("speed_metric", {"speed_metric": 0}, ("False", "0")),
    "three samples": ("samples", {"samples": 3}, ("power of two", "3")),
    "no samples": ("samples", {"samples": 0}, ("power of two",)),
    "too many samples": ("samples", {"samples": 512}, ("256", "512")),
    "half a sample": ("samples", {"samples": 0.5}, ("0.5",)),
    "too many steps": ("samples", {"semantics": "curobo", "samples": 256}, ("255", "256")),
    "speed without time": ("time_step_s", {"speed_metric": True}, ("speed_metric", "None")),
    "no time": ("time_step_s", {"time_step_s": 0.0}, ("seconds", "0.0")),
    "time as text": ("time_step_s", {"time_step_s": "1"}, ("seconds",)),
    "unknown reduction": ("reduction", {"reduction": "mean"}, ("sum", "mean")),
    "cuRobo's maximum": ("reduction", {"semantics": "curobo", "reduction": "max"}, ("sum", "curobo")),
    "a swept field": ("sweep", {"semantics": "curobo_field", "sweep": True}, ("curobo_field",)),
    "a fast field": (
        "speed_metric",
        {"semantics": "curobo_field", "speed_metric": True, "time_step_s": 1.0},
        ("curobo_field",),
    ),
    "endless weight": ("weight", {"weight": INF}, ("finite", "inf")),
    "no weight": ("weight", {"weight": None}, ("None",)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_spoiled_setting_is_named(name: str) -> None:
    argument, changes, words = SETTINGS[name]
    refused(lambda: Settings(**changes), argument, *words)
