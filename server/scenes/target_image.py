"""Target images: the images that a training compares its renderings with, stored like scenes."""

from __future__ import annotations

from math import prod

import torch

from lumigrad.protos import dtypes
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.engines.content import Rules, Shapes, Tensors, check_shape, check_type
from lumigrad.v1 import tensor_pb2

KIND = "target"


class TargetImageRules(Rules):
    """The rules for target images."""

    name = KIND
    # No engine computes with a target image alone.
    engine = ""

    def check_type(self, name: str, tensor: tensor_pb2.Tensor, field: str) -> None:
        """Check the type of a tensor, and that its size can be computed."""
        check_type(tensor, field, *((dtypes.FLOAT32,) if name == "depth" else (dtypes.FLOAT32, dtypes.UINT8)))

    def check_shapes(self, shapes: Shapes, limits: Limits, field: str) -> None:
        """Check the shapes in the header; `field` is the path of the target image in its request."""
        require(bool(shapes), field, "at least one of color, mask and depth", "none")
        size = image_size(shapes)
        limit = f"1 to {limits.pixels} pixels (the worker's --max-pixels)"
        require(1 <= prod(size) <= limits.pixels, field, limit, list(size))
        if "color" in shapes:
            color = list(shapes["color"])
            is_fit = len(color) == 3 and 1 <= color[2] <= limits.channels
            require(is_fit, f"{field}.color", f"shape [H, W, K] with K = 1 to {limits.channels}", color)
        for name in ("mask", "depth"):
            if name in shapes:
                check_shape(shapes[name], size, f"{field}.{name}")

    def check_values(self, tensors: Tensors, field: str) -> None:
        """Check that colours are finite, and masks in [0, 1]."""
        for name, limit in (("color", "finite values"), ("mask", "values in [0, 1]")):
            tensor = tensors.get(name)
            if tensor is None or tensor.dtype == torch.uint8:
                continue
            good = tensor.isfinite() if name == "color" else (tensor >= 0) & (tensor <= 1)
            require(bool(good.all()), f"{field}.{name}", limit, f"{int((~good).sum())} others")

    def count(self, shapes: Shapes) -> int:
        """Return the number of pixels."""
        return prod(image_size(shapes))


def image_size(shapes: Shapes) -> tuple[int, ...]:
    """Return the height and width."""
    return tuple(next(iter(shapes.values()))[:2])
