"""Calls cuRobo's autograd functions as its cost terms do: obstacles, settings and buffers are tensors."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lumigrad.client.compat.curobo import SdfMeshWarpPy, SweptSdfMeshWarpPy, register_mesh
from support.meshes.case import MeshShape

VARIABLE = "LUMIGRAD_TEST_DATA"
ABSENT = f"set {VARIABLE} to the folder that holds oracle/meshes/*.npz to compare with double precision"
IDENTITY = (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0)


def files() -> list[Path]:
    """The files of expected results; none if the variable is not set."""
    folder = os.environ.get(VARIABLE)
    return sorted(Path(folder, "oracle", "meshes").glob("*.npz")) if folder else []


@dataclass
class Slots:
    """Meshes by environment and slot."""

    mesh_idx: torch.Tensor
    mesh_pose_inverse: torch.Tensor
    mesh_enable: torch.Tensor
    n_env_mesh: torch.Tensor

    @staticmethod
    def of(shape: MeshShape, pose_inverse: tuple[float, ...] = IDENTITY) -> Slots:
        """Registers one mesh in one environment."""
        handle = register_mesh(shape.vertices, shape.faces)
        return Slots(
            torch.tensor([[handle]]),
            torch.tensor([[pose_inverse]]),
            torch.ones(1, 1, dtype=torch.uint8),
            torch.ones(1, dtype=torch.int32),
        )

    @property
    def tensors(self) -> tuple[torch.Tensor, ...]:
        """The tensors in the order of the arguments."""
        return self.mesh_idx, self.mesh_pose_inverse, self.mesh_enable, self.n_env_mesh


@dataclass
class Term:
    """A cost term of cuRobo: its settings, and the buffers that its calls reuse."""

    slots: Slots
    weight: float = 1.0
    activation: float = 0.0
    reach: float = 0.5
    steps: int | None = None
    dt: float = 0.1
    speed: bool = False
    environments: torch.Tensor | None = None
    return_loss: bool = False
    esdf: bool = False
    buffers: dict[tuple[int, ...], tuple[torch.Tensor, ...]] = field(default_factory=dict)

    def buffers_for(self, spheres: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Cost, gradient and sparsity; zeros at first."""
        rows = tuple(spheres.shape[:3])
        if rows not in self.buffers:
            device = spheres.device
            zeros = torch.zeros(rows, device=device), torch.zeros(*rows, 4, device=device)
            self.buffers[rows] = (*zeros, torch.zeros(rows, dtype=torch.uint8, device=device))
        return self.buffers[rows]

    def __call__(self, spheres: torch.Tensor) -> torch.Tensor:
        """Return the cost of each sphere."""
        head = (spheres, *self.buffers_for(spheres), torch.tensor([self.weight]), torch.tensor([self.activation]))
        reach = torch.tensor([self.reach])
        if self.steps is None:
            return SdfMeshWarpPy.apply(
                *head, *self.slots.tensors, reach, self.environments, self.return_loss, self.esdf
            )
        swept = (torch.tensor([self.dt]), *self.slots.tensors, reach, self.steps, self.speed)
        return SweptSdfMeshWarpPy.apply(*head, *swept, self.environments, self.return_loss)


def oracle_term(arrays: dict[str, Any]) -> Term:
    """The cost term that a file of expected results describes."""
    handles = [register_mesh(arrays[f"V{index}"], arrays[f"F{index}"]) for index in range(len(arrays["mesh_names"]))]
    slots = Slots(
        torch.tensor([[handles[index] if index >= 0 else -1 for index in row] for row in arrays["mesh_idx"]]),
        torch.from_numpy(arrays["mesh_pose_inverse"]),
        torch.from_numpy(arrays["mesh_enable"]),
        torch.from_numpy(arrays["n_env_mesh"]),
    )
    rows = arrays.get("env_query_idx")
    swept = str(arrays["kind"]) == "swept"
    return Term(
        slots,
        weight=float(arrays["weight"]),
        activation=float(arrays["activation_distance"]),
        reach=float(arrays["max_dist"]),
        steps=int(arrays["sweep_steps"]) if swept else None,
        dt=float(arrays["speed_dt"]),
        speed=swept and bool(arrays["enable_speed_metric"]),
        environments=None if rows is None else torch.from_numpy(np.asarray(rows, np.int32)),
        esdf=str(arrays["kind"]) == "esdf",
    )
