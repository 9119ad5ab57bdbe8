"""Rays that a request gives for its cameras, in place of the rays of their lenses."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

from lumigrad.protos.tensors import nbytes
from lumigrad.server.core.errors import InvalidArgumentError
from lumigrad.server.core.limits import Limits, require
from lumigrad.server.engines.content import Tensors, check_shape, check_type
from lumigrad.v1 import render_pb2, tensor_pb2

RAY_VALUES = 6


def given_rays(spec: render_pb2.RenderSpec, limits: Limits, field: str) -> Mapping[str, tensor_pb2.Tensor]:
    """Check the headers of the rays; returns them by their paths below `field`, the path of the spec."""
    given = [camera.sensor.HasField("rays") for camera in spec.cameras]
    tensors: dict[str, tensor_pb2.Tensor] = {}
    size = 0
    for index, camera in enumerate(spec.cameras):
        path = f"cameras[{index}].sensor.rays"
        found = "some" if given[index] else "none"
        require(given[index] == given[0], f"{field}.{path}", "rays of all cameras of a call, or of none", found)
        if given[index]:
            tensor = tensors[f"{path}.rays"] = camera.sensor.rays.rays
            # The message holds only its tensor, so errors need not name both.
            check_type(tensor, f"{field}.{path}")
            check_shape(tensor.shape, [camera.height, camera.width, RAY_VALUES], f"{field}.{path}")
            size += nbytes(tensor, field)
    limit = f"at most {limits.payload_bytes} bytes of rays (the worker's --max-payload-mib)"
    require(size <= limits.payload_bytes, f"{field}.cameras", limit, size)
    return tensors


def stacked(tensors: Tensors, names: Collection[str], field: str) -> torch.Tensor:
    """Check the values of uploaded rays [H, W, 6], `names` below `field`; returns a copy [C, H, W, 6]."""
    for name in names:
        rays = tensors[name]
        is_valid = torch.isfinite(rays).all(-1) & (rays[..., 3:] != 0).any(-1)
        if not is_valid.all():
            row, column = (~is_valid).nonzero()[0].tolist()
            limit = "finite origins, and finite directions other than 0"
            numbers = " ".join(f"{number:g}" for number in rays[row, column].tolist())
            found = f"{numbers} at row {row}, column {column}"
            raise InvalidArgumentError(f"{field}.{name.removesuffix('.rays')}", limit, found)
    return torch.stack([tensors[name] for name in names])
