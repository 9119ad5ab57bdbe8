"""Sphere clouds: which tensors they have, and what may be in them."""

from __future__ import annotations

from lumigrad.kernels import spheres
from lumigrad.server.arrivals import Shapes, check_float32, check_shape
from lumigrad.server.content import Tensors
from lumigrad.server.limits import Limits, arguments_of, require
from lumigrad.v1 import tensor_pb2

KIND = "spheres"


class SphereRules:
    """The rules for scenes of spheres."""

    name = engine = KIND

    def check_type(self, _: str, tensor: tensor_pb2.Tensor, field: str) -> None:
        """Check the type of a tensor, and that its size can be computed."""
        check_float32(tensor, field)

    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check all that the header tells; `field` is the path of the cloud in its request."""
        for name in ("positions", "colors", "radii"):
            require(name in shapes, f"{field}.{name}", "a tensor", "none")
        positions, colors = shapes["positions"], list(shapes["colors"])
        count = positions[0] if positions else 0
        require(count <= limits.primitives, f"{field}.positions", f"at most {limits.primitives} spheres", count)
        channels = colors[1] if len(colors) == 2 else 0
        check_shape(positions, [count, 3], f"{field}.positions")
        is_fit = colors == [count, channels] and channels >= 1
        require(is_fit, f"{field}.colors", f"shape [{count}, K] with K >= 1", colors)
        require(channels <= limits.channels, f"{field}.colors", f"at most {limits.channels} channels", channels)
        for name in ("radii", "opacities"):
            if name in shapes:
                check_shape(shapes[name], [count], f"{field}.{name}")

    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check that all is finite, radii > 0, opacities in [0, 1]."""
        with arguments_of(field):
            spheres.check_values(tensors["positions"], tensors["colors"], tensors["radii"], tensors.get("opacities"))

    def count(self, shapes: Shapes) -> int:
        """The number of spheres."""
        return shapes["radii"][0]
