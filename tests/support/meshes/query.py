"""A small query that tests spoil, and how they see that it was refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.meshes import Cuboid, Evaluation, Instance, Mesh, Settings, State, World, evaluate

VERTICES = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
FACES = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


def tetrahedron(**changes: Any) -> Mesh:
    """Of four faces, with changes."""
    return Mesh.build(**{"vertices": VERTICES, "faces": FACES, **changes})


def world() -> World:
    """A mesh in environment 0, a cuboid in environment 1."""
    return World([Instance(tetrahedron()), Instance(Cuboid((1.0, 2.0, 3.0)), environment=1)], environments=2)


def spheres() -> Tensor:
    """[2, 3, 5, 4], all on."""
    return torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))


def query(**changes: Any) -> Evaluation:
    """Costs of the spheres in the world, with changes."""
    given: dict[str, Any] = {"spheres": spheres(), "world": world(), "settings": Settings(), **changes}
    return evaluate(given.pop("spheres"), given.pop("world"), given.pop("settings"), **given)


def retained(**changes: Any) -> State:
    """What that keeps for a backward pass."""
    state = query(retain=True, **changes).state
    assert isinstance(state, State)
    return state


def refused(call: Callable[[], object], argument: str, *words: str) -> None:
    """The call is refused, its error naming the argument and saying these words."""
    with pytest.raises(ArgumentError) as caught:
        call()
    error = caught.value
    assert argument in error.argument, f"blames {error.argument!r}: {error}"
    assert error.expected and error.actual
    for text in (error.argument, *words):
        assert text in str(error), f"{text!r} not in {error}"
