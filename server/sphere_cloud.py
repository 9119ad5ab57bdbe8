"""Sphere clouds as they arrive: shapes from the header, then tensors on the device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from lumigrad.kernels import spheres
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadReader, nbytes
from lumigrad.server.limits import Limits, arguments_of, require
from lumigrad.server.scenes import Tensors
from lumigrad.server.transfer import Transfer
from lumigrad.v1 import scene_pb2, tensor_pb2

KIND = "spheres"
PER_SPHERE = ("positions", "colors", "radii", "opacities")


def tensors_in(cloud: scene_pb2.SphereCloud) -> dict[str, tensor_pb2.Tensor]:
    """The tensors that are set, by name."""
    return {name: getattr(cloud, name) for name in PER_SPHERE if cloud.HasField(name)}


def check_cloud(cloud: scene_pb2.SphereCloud, limits: Limits, field: str) -> None:
    """Check all that the header tells; `field` is the path of the cloud in its request."""
    tensors = tensors_in(cloud)
    for name in ("positions", "colors", "radii"):
        require(name in tensors, f"{field}.{name}", "a tensor", "none")
    for name, tensor in tensors.items():
        check_float32(tensor, f"{field}.{name}")
    count = cloud.positions.shape[0] if cloud.positions.shape else 0
    require(count <= limits.primitives, f"{field}.positions", f"at most {limits.primitives} spheres", count)
    channels = cloud.colors.shape[1] if len(cloud.colors.shape) == 2 else 0
    check_shape(cloud.positions, [count, 3], f"{field}.positions")
    require(
        list(cloud.colors.shape) == [count, channels] and channels >= 1,
        f"{field}.colors", f"shape [{count}, K] with K >= 1", list(cloud.colors.shape),
    )  # fmt: skip
    require(channels <= limits.channels, f"{field}.colors", f"at most {limits.channels} channels", channels)
    check_shape(cloud.radii, [count], f"{field}.radii")
    if "opacities" in tensors:
        check_shape(cloud.opacities, [count], f"{field}.opacities")


def check_float32(tensor: tensor_pb2.Tensor, field: str) -> None:
    """Check the type, and that the size can be computed."""
    require(tensor.dtype == dtypes.FLOAT32, f"{field}.dtype", "DTYPE_FLOAT32", dtypes.name(tensor.dtype))
    nbytes(tensor, field)


def check_shape(tensor: tensor_pb2.Tensor, shape: list[int], field: str) -> None:
    """Check one shape."""
    require(list(tensor.shape) == shape, f"{field}.shape", f"{shape}", list(tensor.shape))


def uploader(
    tensors: Mapping[str, tensor_pb2.Tensor], reader: PayloadReader, transfer: Transfer, field: str
) -> Callable[[], dict[str, torch.Tensor]]:
    """Check the places of tensors in the payload; returns what uploads them, for the device's thread."""
    arrays = {name: (reader.read(tensor, f"{field}.{name}"), tensor.dtype) for name, tensor in tensors.items()}
    return lambda: {name: transfer.upload(array, dtype) for name, (array, dtype) in arrays.items()}


def check_values(tensors: Tensors, field: str) -> None:
    """Check what only the device can see quickly: finite, radii > 0, opacities in [0, 1]."""
    with arguments_of(field):
        spheres.check_values(tensors["positions"], tensors["colors"], tensors["radii"], tensors.get("opacities"))
