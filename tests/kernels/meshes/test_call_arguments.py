"""Invalid queries, gradients and fields are refused by name, with the expected and the actual value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

from lumigrad.kernels.meshes import OUTPUTS, World, backward, check_values, esdf
from support.meshes.query import query, retained, spheres, tetrahedron, world
from support.refusals import refused

NAN, INF = float("nan"), float("inf")
ONES = torch.ones(2, 3, 5)
BOX = {"box_pose": [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0], "dims": [1.0, 1.0, 1.0], "voxel_size": 0.5}


def spoiled(value: float) -> Tensor:
    changed = spheres()
    changed[1, 2, 3, 0] = value
    return changed


def test_the_call_that_the_others_spoil_works() -> None:
    assert query().outputs["cost"].shape == (2, 3, 5)


def numbers(*environments: int, **options: Any) -> Tensor:
    return torch.tensor(environments, dtype=torch.int32, **options)


# Refused calls: the argument that is named, the call, and words of the error.
CALLS: dict[str, tuple[str, Callable[[], object], tuple[str, ...]]] = {
    "spheres as a list": ("spheres", lambda: query(spheres=spheres().tolist()), ("[B, H, S, 4]", "list")),
    "spheres of one trajectory": ("spheres", lambda: query(spheres=spheres()[0]), ("[B, H, S, 4]", "3, 5, 4")),
    "centres only": ("spheres", lambda: query(spheres=spheres()[..., :3]), ("2, 3, 5, 3",)),
    "double spheres": ("spheres", lambda: query(spheres=spheres().double()), ("float64",)),
    "too many spheres": (
        "spheres",
        lambda: query(spheres=torch.zeros(1, device="cpu").expand(2**10, 2**10, 2**8, 4)),
        ("134217728",),
    ),
    "spheres elsewhere": ("spheres", lambda: query(spheres=spheres().to("meta")), ("cpu", "meta")),
    "spheres that no engine serves": (
        "spheres",
        lambda: query(spheres=spheres().to("meta"), world=World([]), checked=True),
        ("meta", "CPU"),
    ),
    "a sphere that is no number": ("spheres", lambda: query(spheres=spoiled(NAN)), ("finite",)),
    "a sphere at infinity": ("spheres", lambda: query(spheres=spoiled(-INF)), ("finite",)),
    "a sphere far away": ("spheres", lambda: query(spheres=spoiled(1e10)), ("1e+09", "1e+10")),
    "a mesh for a world": ("world", lambda: query(world=tetrahedron()), ("World", "Mesh")),
    "settings as a mapping": ("settings", lambda: query(settings={}), ("Settings", "dict")),
    "environments as a list": ("environments", lambda: query(environments=[0, 1]), ("[2]", "list")),
    "long environments": ("environments", lambda: query(environments=torch.tensor([0, 1])), ("int32", "int64")),
    "environments of other rows": ("environments", lambda: query(environments=numbers(0, 0, 0)), ("[2]", "[3]")),
    "an absent environment": ("environments", lambda: query(environments=numbers(0, 2)), ("0 to 1", "0 to 2")),
    "a negative environment": ("environments", lambda: query(environments=numbers(-1, 1)), ("0 to 1", "-1 to 1")),
    "environments on meta": ("environments", lambda: query(environments=numbers(0, 0, device="meta")), ("cpu", "meta")),
    "no outputs": ("outputs", lambda: query(outputs=()), ("none", "cost")),
    "unknown output": ("outputs", lambda: query(outputs=("distance", "depth")), ("depth", "closest")),
    "costs of each": ("outputs", lambda: query(outputs=("cost",), per_instance=True), ("per_instance", "cost")),
}


@pytest.mark.parametrize("name", CALLS)
def test_spoiled_call_is_named(name: str) -> None:
    argument, call, words = CALLS[name]
    refused(call, argument, *words)


def test_values_can_be_checked_beforehand() -> None:
    good = numbers(0, 1)
    check_values(spheres(), good, world())
    check_values(spheres()[:0], None, world())
    refused(lambda: check_values(spoiled(NAN), None, world()), "spheres", "finite")
    refused(lambda: check_values(spheres(), good + 1, world()), "environments", "0 to 1")


@pytest.mark.parametrize(
    ("given", "argument", "words"),
    [
        ({}, "output_gradients", ("cost",)),
        ({"distance": ONES}, "output_gradients", ("distance", "retained")),
        ({"normal": ONES}, "output_gradients", ("normal",)),
        ({"cost": ONES[0]}, "cost", ("2, 3, 5", "3, 5")),
        ({"cost": ONES.double()}, "cost", ("float64",)),
        ({"cost": None}, "cost", ("none",)),
        ({"cost": ONES.to("meta")}, "cost", ("cpu", "meta")),
    ],
)
def test_spoiled_output_gradient_is_named(given: Mapping[str, Any], argument: str, words: tuple[str, ...]) -> None:
    state = retained()
    refused(lambda: backward(state, given), argument, *words)


def test_gradient_of_distances_to_each_instance_has_their_shape() -> None:
    state = retained(outputs=("distance",), per_instance=True)
    refused(lambda: backward(state, {"distance": ONES}), "distance", "2, 3, 5, 2")
    refused(lambda: backward(state, {"cost": ONES}), "output_gradients", "cost")


def test_a_gradient_that_there_cannot_be_is_named() -> None:
    state = retained()
    refused(lambda: backward(state, {"cost": ONES}, ("vertices",)), "wanted", "vertices", "poses")
    refused(lambda: backward(query(), {"cost": ONES}), "state", "Evaluation")  # type: ignore[arg-type]


FIELDS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "a mesh for a world": ("world", {"world": None}, ("World", "NoneType")),
    "a short pose": ("box_pose", {"box_pose": [0.0, 0.0, 0.0]}, ("7",)),
    "a flat box": ("dims", {"dims": [1.0, 0.0, 1.0]}, ("above 0",)),
    "no voxels": ("voxel_size", {"voxel_size": 0.0}, ("above 0",)),
    "too many voxels": ("voxel_size", {"voxel_size": 1e-4}, ("2147483647", "0.0001")),
    "voxels of text": ("voxel_size", {"voxel_size": "fine"}, ("fine",)),
    "another environment": ("environment", {"environment": 2}, ("0 to 1", "2")),
    "costs in a field": ("semantics", {"semantics": "curobo"}, ("curobo_field",)),
    "no distance": ("max_distance", {"max_distance": -1.0}, ("above 0",)),
}


@pytest.mark.parametrize("name", FIELDS)
def test_spoiled_field_is_named(name: str) -> None:
    argument, changes, words = FIELDS[name]
    refused(lambda: esdf(**{"world": world(), **BOX, **changes}), argument, *words)


def test_nothing_to_ask_of_is_no_error() -> None:
    none = query(spheres=torch.zeros(2, 0, 5, 4), outputs=OUTPUTS, retain=True)
    assert none.outputs["gradient"].shape == (2, 0, 5, 4)
    found = backward(none.state, {"cost": torch.zeros(2, 0, 5), "distance": torch.zeros(2, 0, 5)}).gradients
    assert found["spheres"].shape == (2, 0, 5, 4) and found["poses"].abs().sum() == 0.0
    empty = query(world=World([]), outputs=OUTPUTS, retain=True)
    assert empty.outputs["distance"].isinf().all() and (empty.outputs["instance"] == -1).all()
    assert query(world=World([]), outputs=("distance",), per_instance=True).outputs["distance"].shape == (2, 3, 5, 0)
