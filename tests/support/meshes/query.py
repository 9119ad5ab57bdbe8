"""A small valid query, which tests make invalid, and a check that it is refused."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lumigrad.kernels.meshes import Cuboid, Evaluation, Instance, Mesh, Settings, State, World, evaluate

VERTICES = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
FACES = torch.tensor([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]])


def tetrahedron(**changes: Any) -> Mesh:
    """A mesh of four faces; `changes` replace its arguments."""
    return Mesh.build(**{"vertices": VERTICES, "faces": FACES, **changes})


def world() -> World:
    """A mesh in environment 0, a cuboid in environment 1."""
    return World([Instance(tetrahedron()), Instance(Cuboid((1.0, 2.0, 3.0)), environment=1)], environments=2)


def spheres() -> Tensor:
    """Spheres [2, 3, 5, 4], all enabled."""
    return torch.rand(2, 3, 5, 4, generator=torch.Generator().manual_seed(1))


def query(**changes: Any) -> Evaluation:
    """Costs of the spheres in the world; `changes` replace arguments."""
    given: dict[str, Any] = {"spheres": spheres(), "world": world(), "settings": Settings(), **changes}
    return evaluate(given.pop("spheres"), given.pop("world"), given.pop("settings"), **given)


def retained(**changes: Any) -> State:
    """The forward state of the query."""
    return query(retain=True, **changes).state
