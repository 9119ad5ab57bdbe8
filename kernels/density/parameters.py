"""Parameters in training, with the moments of their optimiser."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from lumigrad.kernels.checks import check_tensor
from lumigrad.kernels.errors import ArgumentError

_GAUSSIANS = {"means": 3, "quats": 4, "scales": 3, "opacities": None}
_SPHERES = {"positions": 3, "radii": None}
# A plan may double the number of rows, which must fit in 31 bits.
_MAX_ROWS = 2**30 - 1
Tensors = Mapping[str, torch.Tensor]


@dataclass(frozen=True, eq=False)
class Parameters:
    """N Gaussians or N spheres in training; contiguous float32 tensors on one device, one row per primitive.

    Density control changes rows in place (relocation, noise, resets), and returns new tensors where the number of rows
    changes. It ignores `requires_grad`; new tensors do not require gradients.

    Attributes:
        tensors: By name. Gaussians: "means" [N, 3], "quats" [N, 4] w, x, y, z of any length, "scales" [N, 3], natural
            logarithms of standard deviations in scene units, and "opacities" [N], logits. Spheres: "positions" [N,
            3], "radii" [N], scene units, and optionally "opacities" [N] in [0, 1], none with an activation. Further
            tensors, such as "sh" [N, K, D] or "colors" [N, D], are copied row by row.
        moments: Optimiser state by parameter name: tensors of the parameter's shape, for Adam the first and the second
            moments. Added and replaced rows have moments of 0. Parameters without state have no entry.

    Raises:
        ArgumentError: A tensor is missing or has the wrong shape, type or device.
    """

    tensors: Tensors
    moments: Mapping[str, Sequence[torch.Tensor]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("tensors", "moments"):
            if not isinstance(getattr(self, name), Mapping):
                raise ArgumentError(name, "a mapping by parameter name", type(getattr(self, name)).__name__)
        leader, widths = self._kind()
        first = self.tensors[leader]
        if not isinstance(first, torch.Tensor) or first.dim() != 2:
            actual = f"shape {list(first.shape)}" if hasattr(first, "shape") else type(first).__name__
            raise ArgumentError(leader, "a float32 tensor of shape [N, 3]", actual)
        if first.shape[0] > _MAX_ROWS:
            raise ArgumentError(leader, f"at most {_MAX_ROWS} rows", f"{first.shape[0]}")
        for name in (*widths, *self.tensors):
            self._check(name, widths.get(name), name in widths)
        self._check_moments()

    def _kind(self) -> tuple[str, dict[str, int | None]]:
        """The name of the tensor that sets N and the device, and the row lengths of the required tensors."""
        for leader, widths in (("means", _GAUSSIANS), ("positions", _SPHERES)):
            if leader in self.tensors:
                return leader, {**widths, **({"opacities": None} if "opacities" in self.tensors else {})}
        expected = "Gaussians with 'means' or spheres with 'positions'"
        raise ArgumentError("tensors", expected, f"{sorted(self.tensors)}")

    def _check(self, name: str, width: int | None, known: bool) -> None:
        if name not in self.tensors:
            raise ArgumentError("tensors", f"{name!r} beside {self.leader!r}", f"{sorted(self.tensors)}")
        tensor = self.tensors[name]
        if known:
            shape: tuple[int | None, ...] = (self.count,) if width is None else (self.count, width)
        else:
            shape = (self.count, *tuple(getattr(tensor, "shape", ()))[1:])
        check_tensor(name, tensor, shape, self.device, self.leader)
        _check_contiguous(name, tensor)

    def _check_moments(self) -> None:
        for name, moments in self.moments.items():
            if name not in self.tensors:
                raise ArgumentError("moments", f"names of tensors: {sorted(self.tensors)}", repr(name))
            if not isinstance(moments, Sequence):
                raise ArgumentError(f"moments of {name}", "a sequence of tensors", type(moments).__name__)
            for moment in moments:
                where = f"moments of {name}"
                check_tensor(where, moment, tuple(self.tensors[name].shape), self.device, self.leader)
                _check_contiguous(where, moment)

    @property
    def leader(self) -> str:
        """The name of the tensor of centres: "means" of Gaussians, "positions" of spheres."""
        return "means" if self.gaussians else "positions"

    @property
    def gaussians(self) -> bool:
        """Whether these are Gaussians (False: spheres)."""
        return "means" in self.tensors

    @property
    def sizes(self) -> torch.Tensor:
        """Scales [N, 3] of Gaussians, radii [N] of spheres, detached."""
        return self.tensors["scales" if self.gaussians else "radii"].detach()

    @property
    def count(self) -> int:
        """N."""
        return self.tensors[self.leader].shape[0]

    @property
    def device(self) -> torch.device:
        """The device of the tensors."""
        return self.tensors[self.leader].device

    def require_gaussians(self, what: str) -> None:
        """Raises an ArgumentError if these are spheres; `what` names the operation.

        Raises:
            ArgumentError: These are spheres.
        """
        if not self.gaussians:
            raise ArgumentError("parameters", f"Gaussians: {what} is for them", "spheres")

    def arrays(self, *names: str) -> dict[str, torch.Tensor | None]:
        """Detached tensors by name; None for absent ones."""
        return {name: self.tensors[name].detach() if name in self.tensors else None for name in names}


def check_parameters(parameters: Parameters) -> None:
    """Checks the type.

    Raises:
        ArgumentError: The argument is not a `Parameters`.
    """
    if not isinstance(parameters, Parameters):
        raise ArgumentError("parameters", "Parameters(tensors, moments)", type(parameters).__name__)


def _check_contiguous(name: str, tensor: torch.Tensor) -> None:
    if not tensor.is_contiguous():
        raise ArgumentError(name, "a contiguous tensor", f"strides {list(tensor.stride())}")
