"""Output buffers of cuRobo's functions: shapes, and where results are written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.client.compat.curobo.errors import CuroboArgumentError


@dataclass
class CollisionBuffer:
    """The tensors that one query writes, on any device; they may be used again by later calls.

    Attributes:
        distance_buffer: (b, h, n) costs, or distances with compute_esdf.
        grad_distance_buffer: (b, h, n, 4) gradients of the spheres; the last column, that of radii, is not written.
        sparsity_index_buffer: (b, h, n) uint8, 1 where the cost is not 0; None: not requested.
    """

    distance_buffer: torch.Tensor
    grad_distance_buffer: torch.Tensor
    sparsity_index_buffer: torch.Tensor | None

    @staticmethod
    def zeros(shape: Sequence[int], device: Any) -> CollisionBuffer:
        """Creates buffers of zeros for spheres of a shape (b, h, n, 4)."""
        rows = tuple(shape[:3])
        return CollisionBuffer(
            torch.zeros(rows, device=device),
            torch.zeros((*rows, 4), device=device),
            torch.zeros(rows, device=device, dtype=torch.uint8),
        )

    def clone(self) -> CollisionBuffer:
        """Returns a copy, tensors included."""
        sparsity = self.sparsity_index_buffer
        copies = self.distance_buffer.clone(), self.grad_distance_buffer.clone()
        return CollisionBuffer(*copies, None if sparsity is None else sparsity.clone())

    def check(self, spheres: torch.Tensor) -> None:
        """Raises CuroboArgumentError unless the buffers fit the spheres (b, h, n, 4)."""
        if not isinstance(spheres, torch.Tensor) or spheres.ndim != 4 or spheres.shape[-1] != 4:
            raise CuroboArgumentError.of("query_spheres", f"expected a tensor [b, h, n, 4], got {_kind(spheres)}")
        rows = spheres.shape[:3]
        expected = {"out_cost": (self.distance_buffer, rows), "out_grad": (self.grad_distance_buffer, spheres.shape)}
        if self.sparsity_index_buffer is not None:
            expected["sparsity_idx"] = (self.sparsity_index_buffer, rows)
        for name, (buffer, shape) in expected.items():
            if not isinstance(buffer, torch.Tensor) or buffer.shape != shape:
                raise CuroboArgumentError.of(name, f"expected a tensor of shape {list(shape)}, got {_kind(buffer)}")

    def write(self, cost: torch.Tensor, gradient: torch.Tensor | None) -> None:
        """Overwrites the buffers with a result, zeros included."""
        self.distance_buffer.copy_(cost)
        if gradient is not None:
            self.grad_distance_buffer[..., :3].copy_(gradient[..., :3])
        if self.sparsity_index_buffer is not None:
            self.sparsity_index_buffer.copy_(cost != 0)


@dataclass
class CollisionQueryBuffer:
    """One buffer for obstacles of all kinds, whose costs are added on the worker.

    Attributes:
        mesh_collision_buffer: the buffer; None: it is made when it is first needed.
    """

    mesh_collision_buffer: CollisionBuffer | None = None

    @staticmethod
    def initialize_from_shape(
        shape: Sequence[int], tensor_args: Any = None, collision_types: Any = None
    ) -> CollisionQueryBuffer:
        """Creates buffers for spheres of a shape (b, h, n, 4); `collision_types` has no effect."""
        return CollisionQueryBuffer(CollisionBuffer.zeros(shape, getattr(tensor_args, "device", None)))

    def update_buffer_shape(self, shape: Sequence[int], tensor_args: Any = None, collision_types: Any = None) -> None:
        """Makes new buffers if these are of another shape or device."""
        device = torch.device(getattr(tensor_args, "device", None) or "cpu")
        held = self.mesh_collision_buffer
        if held is None or held.distance_buffer.shape != tuple(shape[:3]) or held.distance_buffer.device != device:
            self.mesh_collision_buffer = CollisionBuffer.zeros(shape, device)

    def clone(self) -> CollisionQueryBuffer:
        """Returns a copy, tensors included."""
        held = self.mesh_collision_buffer
        return CollisionQueryBuffer(None if held is None else held.clone())

    def get_gradient_buffer(self) -> torch.Tensor | None:
        """Returns (b, h, n, 4), the gradients of the last query whose spheres required one; None before the first."""
        held = self.mesh_collision_buffer
        return None if held is None else held.grad_distance_buffer

    def buffers_for(self, spheres: torch.Tensor) -> CollisionBuffer:
        """Returns the buffers that a query of these spheres writes."""
        self.update_buffer_shape(spheres.shape, spheres)
        held = self.mesh_collision_buffer
        assert held is not None
        return held


def _kind(value: Any) -> str:
    return f"shape {list(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
