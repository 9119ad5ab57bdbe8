"""Requests as engines see them: the plan, and checks of cameras, outputs and output gradients."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from google.protobuf.message import Message

from lumigrad.protos import dtypes
from lumigrad.protos.tensors import nbytes
from lumigrad.server.core.limits import Limits, known, names_of, require
from lumigrad.server.engines.content import Shapes, check_shape
from lumigrad.v1 import camera_pb2, distance_pb2, render_pb2, tensor_pb2

_IDENTITY = {"rotation": (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0), "translation": (0.0, 0.0, 0.0)}
_PROJECTIONS = names_of(camera_pb2.Projection)
# Batching larger images gains nothing, and each call would wait for the last one.
_BATCH_PIXELS = 1 << 20
# The pixels and primitives, over all views of a call, that a device draws without a break, in some tens of
# milliseconds; on CUDA those of one launch (see kernels/per_device.py).
_CPU_WORK, _CUDA_WORK = 1 << 20, 1 << 24


@dataclass(frozen=True, kw_only=True)
class Plan(ABC):
    """A checked request for a scene with some outline. Each engine adds the arguments of its kernels.

    Attributes:
        outputs: The requested outputs, each once.
        upstream_shapes: The shape of every output gradient that a Backward may send.
        gradient_sizes: The number of values of every gradient that a Backward may request.
        default_wanted: The gradients of a Backward that names none.
        row_gradients: The gradients that have a row per primitive.
        views: The number of views that are rendered; 1 for a query.
        kind: Plans for one scene with equal kinds may run in one batch; None to run alone.
        fill: The fraction of a full batch that the request takes.
    """

    outputs: tuple[str, ...]
    output_shapes: Shapes
    upstream_shapes: Shapes
    gradient_sizes: Mapping[str, int]
    default_wanted: tuple[str, ...]
    row_gradients: Collection[str]
    count: int
    views: int
    kind: Hashable | None
    fill: float

    def is_long(self, device: torch.device) -> bool:
        """Return whether the request is rendered in several steps, between which other jobs run."""
        height_width = self.output_shapes.get("alpha", (0, 0, 0))[1:]
        work = self.views * (prod(height_width) + self.count)
        return self.views > 1 and work > (_CPU_WORK if device.type == "cpu" else _CUDA_WORK)

    @property
    def lead(self) -> int:
        """The length of the first axis, which all outputs share: views, or trajectories."""
        return self.output_shapes[self.outputs[0]][0]

    @property
    def request_tensors(self) -> Mapping[str, tensor_pb2.Tensor]:
        """Tensors that the engine takes besides the scene's, by their paths below the spec."""
        return {}

    def image_bytes(self, names: Collection[str]) -> int:
        """Return the size of outputs on the device."""
        return sum(self.value_bytes(name) * prod(self.output_shapes[name]) for name in names)

    @abstractmethod
    def forward_bytes(self, outputs: Collection[str], *, retain: bool, device: torch.device) -> int:
        """Return the approximate device memory of a forward pass, outputs and forward state included."""

    @abstractmethod
    def backward_bytes(self, wanted: Collection[str], device: torch.device) -> int:
        """Return the approximate memory of a backward pass, gradients included, without the forward state."""

    def value_bytes(self, output: str) -> int:
        """Return the bytes of one value of an output: 4, for float32 or int32, unless an engine overrides this."""
        return 4


def check_cameras(cameras: Sequence[camera_pb2.Camera], limits: Limits, field: str) -> None:
    """Check the number of cameras and their sizes."""
    limit = f"1 to {limits.cameras} cameras (the worker's --max-cameras)"
    require(1 <= len(cameras) <= limits.cameras, field, limit, len(cameras))
    width, height = cameras[0].width, cameras[0].height
    for index, camera in enumerate(cameras):
        where = f"{field}[{index}]"
        require(camera.width >= 1 and camera.height >= 1, where, "width and height >= 1", _size(camera))
        same = camera.width == width and camera.height == height
        require(same, where, f"the size of the first camera, {_size(cameras[0])}", _size(camera))
    pixels = len(cameras) * width * height
    limit = f"at most {limits.pixels} pixels in all (the worker's --max-pixels)"
    require(pixels <= limits.pixels, field, limit, pixels)


def fill_of(cameras: Sequence[camera_pb2.Camera], limits: Limits) -> float:
    """Return the fraction of the largest batch that checked cameras take."""
    pixels = len(cameras) * cameras[0].width * cameras[0].height
    return max(len(cameras) / limits.batch_views, pixels / min(limits.pixels, _BATCH_PIXELS))


def check_model(camera: camera_pb2.Camera, known: Sequence[str], field: str) -> str:
    """Return the name of the camera's model; raises InvalidArgumentError unless it is in `known`."""
    model = camera.WhichOneof("model")
    limit = " or ".join(", ".join(known).rsplit(", ", 1))
    require(model is not None, field, limit, "none")
    require(model in known, f"{field}.{model}", limit, model)
    return str(model)


def check_length(values: Sequence[float], length: int, field: str) -> None:
    """Check the number of values."""
    require(len(values) == length, field, f"{length} values", len(values))


def check_pose(pose: camera_pb2.OpenCVCamera | camera_pb2.CameraPose, field: str) -> None:
    """Check the lengths of rotation and translation; empty ones become the identity."""
    for name, identity in _IDENTITY.items():
        values = getattr(pose, name)
        if not values:
            values.extend(identity)
        check_length(values, len(identity), f"{field}.{name}")


def projection_of(camera: camera_pb2.OpenCVCamera, field: str) -> str:
    """Return the kernels' name of the projection."""
    return known(_PROJECTIONS, camera.projection, f"{field}.projection")


def rows(values: Sequence[float], length: int) -> list[list[float]]:
    """Split a row-major matrix into rows."""
    return [list(values[start : start + length]) for start in range(0, len(values), length)]


def _size(camera: camera_pb2.Camera) -> str:
    return f"{camera.width}x{camera.height}"


def checked_outputs(
    spec: render_pb2.RenderSpec | distance_pb2.DistanceSpec,
    known: Sequence[str],
    field: str,
    default: str = "color",
    among: str = "",
) -> tuple[str, ...]:
    """Return the requested outputs, each once, or `default`. Error texts have `among` after the known names."""
    for name in spec.outputs:
        require(name in known, f"{field}.outputs", f"one of {', '.join(known)}{among}", name)
    return tuple(dict.fromkeys(spec.outputs)) or (default,)


def given_settings(message: Message) -> dict[str, Any]:
    """Return the optional fields of a settings message that are set; the kernels have defaults for the others."""
    return {field.name: value for field, value in message.ListFields() if field.has_presence}


_DTYPES = (dtypes.FLOAT32, dtypes.FLOAT16, dtypes.BFLOAT16)


def checked_gradients(
    entries: Sequence[tensor_pb2.NamedTensor], shapes: Shapes, field: str
) -> dict[str, tensor_pb2.Tensor]:
    """Check output gradients; returns them by name. `shapes` has the shapes of all that are allowed."""
    names = ", ".join(shapes)
    require(len(entries) > 0, field, f"at least one of {names}", "none")
    tensors: dict[str, tensor_pb2.Tensor] = {}
    for index, entry in enumerate(entries):
        where = f"{field}[{index}]"
        known = entry.name in shapes and entry.name not in tensors
        require(known, f"{where}.name", f"one of {names}, each once", entry.name)
        limit = "DTYPE_FLOAT32, DTYPE_FLOAT16 or DTYPE_BFLOAT16"
        require(entry.tensor.dtype in _DTYPES, f"{where}.tensor.dtype", limit, dtypes.name(entry.tensor.dtype))
        nbytes(entry.tensor, where)
        check_shape(entry.tensor.shape, shapes[entry.name], f"{where}.tensor")
        tensors[entry.name] = entry.tensor
    return tensors
