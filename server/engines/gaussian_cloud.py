"""The rules of Gaussian clouds: tensors, shapes and values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from lumigrad.kernels import gaussians
from lumigrad.protos.tensors import extent
from lumigrad.server.core.limits import Limits, arguments_of, require
from lumigrad.server.engines.content import Shapes, Tensors, check_float32, check_shape
from lumigrad.v1 import tensor_pb2

KIND = "gaussians"
_COEFFICIENTS = (1, 4, 9, 16, 25)


@dataclass(frozen=True)
class Layout:
    """The sizes of a cloud.

    Attributes:
        lead: [N], or [S, N] for S scenes in one.
        channels: D, the channels of colour.
        coefficients: Spherical harmonics per channel; 0: there are colours instead.
        color_views: The number of cameras with colours of their own; 0: all share one.
    """

    lead: Sequence[int]
    channels: int
    coefficients: int
    color_views: int

    @staticmethod
    def of(shapes: Shapes) -> Layout:
        """Create the layout of checked shapes."""
        lead = list(shapes["means"][:-1])
        if "sh" in shapes:
            return Layout(lead, shapes["sh"][-1], shapes["sh"][-2], 0)
        colors = list(shapes["colors"])
        return Layout(lead, colors[-1], 0, prod(colors[:-2]) if len(colors) == len(lead) + 2 else 0)

    @property
    def scenes(self) -> int:
        """S, the number of scenes."""
        return prod(self.lead[:-1])

    @property
    def each(self) -> int:
        """N, the Gaussians of each scene."""
        return self.lead[-1]


class GaussianRules:
    """The rules for scenes of Gaussians."""

    name = engine = KIND

    def check_type(self, _: str, tensor: tensor_pb2.Tensor, field: str) -> None:
        """Check that a tensor is float32 and its shape valid."""
        check_float32(tensor, field)

    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check the shapes in the header; `field` is the path of the cloud in the request."""
        for name in ("means", "opacities"):
            require(name in shapes, f"{field}.{name}", "a tensor", "none")
        means = list(shapes["means"])
        is_fit = len(means) in (2, 3) and means[-1] == 3 and means[0] >= len(means) - 2
        require(is_fit, f"{field}.means", "shape [N, 3], or [S, N, 3] with S >= 1", means)
        lead = means[:-1]
        limit = f"at most {limits.primitives} Gaussians in all"
        require(extent(lead) <= limits.primitives, f"{field}.means", limit, extent(lead))
        check_shape(shapes["opacities"], lead, f"{field}.opacities")
        _check_extent(shapes, lead, field)
        _check_color(shapes, lead, field)
        channels, name = Layout.of(shapes).channels, "sh" if "sh" in shapes else "colors"
        require(channels <= limits.channels, f"{field}.{name}", f"at most {limits.channels} channels", channels)

    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check that values are finite, scales >= 0, opacities in [0, 1]."""
        with arguments_of(field):
            gaussians.check_values(gaussians.Gaussians(**tensors))

    def count(self, shapes: Shapes) -> int:
        """The number of Gaussians of all scenes."""
        return prod(Layout.of(shapes).lead)


def _check_extent(shapes: Shapes, lead: list[int], field: str) -> None:
    for name, length in (("quats", 4), ("scales", 3)):
        if "covariances" in shapes:
            require(name not in shapes, f"{field}.{name}", "none beside covariances", "a tensor")
        else:
            require(name in shapes, f"{field}.{name}", "a tensor, or covariances instead of quats and scales", "none")
            check_shape(shapes[name], [*lead, length], f"{field}.{name}")
    if "covariances" in shapes:
        check_shape(shapes["covariances"], [*lead, 6], f"{field}.covariances")


def _check_color(shapes: Shapes, lead: list[int], field: str) -> None:
    given = [name for name in ("sh", "colors") if name in shapes]
    require(len(given) == 1, f"{field}.colors", "either sh or colors", " and ".join(given) or "neither")
    shape, known = list(shapes[given[0]]), ", ".join(map(str, lead))
    if "sh" in shapes:
        is_fit = len(shape) == len(lead) + 2 and shape[:-2] == lead and shape[-2] in _COEFFICIENTS and shape[-1] >= 1
        require(is_fit, f"{field}.sh", f"shape [{known}, K, D] with K = 1, 4, 9, 16 or 25 and D >= 1", shape)
        return
    views = [*lead[:-1], shape[len(lead) - 1] if len(shape) == len(lead) + 2 else 0, lead[-1]]
    is_fit = shape[:-1] in (lead, views) and shape[-1] >= 1
    per_view = ", ".join(map(str, [*lead[:-1], "C", lead[-1]]))
    require(is_fit, f"{field}.colors", f"shape [{known}, D] or, for C cameras, [{per_view}, D], with D >= 1", shape)
