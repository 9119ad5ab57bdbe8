"""What is asked of a renderer, everything that is needed to ask again: as values, and as messages of the contract."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, get_args

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.engines import GaussianSettings, SphereSettings
from lumigrad.client.settings.image_format import ImageFormats
from lumigrad.client.transport.connection import Reply
from lumigrad.client.values.camera import Camera, InriaModel, OpenCVModel, PulsarModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle, scene_facts
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.wire.scenes import (
    camera_message,
    gaussian_settings_message,
    scene_message,
    sphere_settings_message,
)
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, scene_pb2

WireFormat = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True)
class RenderRequest:
    """One call of render.

    Attributes:
        scene: travels with the call, or names what the worker has.
        cameras: all of one picture size.
        single: one camera was passed, not a sequence of one: results have no camera axis.
        settings: how to blend; of the same kind as the scene.
        outputs: the names of the arrays wanted.
        image_formats: how outputs travel, by name; float32 those that are not named.
        jpeg_quality: 1 to 100; 0: the worker's choice.
    """

    scene: Spheres | Gaussians | SceneHandle
    cameras: tuple[Camera, ...]
    single: bool
    settings: SphereSettings | GaussianSettings
    outputs: tuple[str, ...]
    image_formats: ImageFormats = field(default_factory=dict)
    jpeg_quality: int = 0

    def __post_init__(self) -> None:
        spheres = isinstance(self.settings, SphereSettings)
        for camera in self.cameras:
            model = camera.model
            if isinstance(model, InriaModel if spheres else PulsarModel):
                known = "pulsar or opencv for spheres" if spheres else "opencv or inria for Gaussians"
                raise InvalidArgument.of("camera", f"expected {known}, got {type(model).__name__}")
            if spheres and isinstance(model, OpenCVModel):
                model.check_for_spheres()

    @property
    def stored(self) -> SceneHandle | None:
        """The scene that decides which worker is asked; one that travels with the call does not."""
        return self.scene if isinstance(self.scene, SceneHandle) else None

    def facts(self) -> dict[str, str | int]:
        """What a span tells of it: what is rendered, and how much of it."""
        pixels = sum(camera.width * camera.height for camera in self.cameras)
        return {**scene_facts(self.scene), "cameras": len(self.cameras), "pixels": pixels}


@dataclass(frozen=True)
class BackwardRequest:
    """One call of backward.

    Attributes:
        output_gradients: dL/d output by the output's name, with the axis of cameras.
        wanted: the names of the inputs to differentiate; none: the tensors of the scene.
        sparse: transfer only rows that are not zero.
        wire_format: how gradients per primitive travel.
    """

    output_gradients: Mapping[str, Array]
    wanted: tuple[str, ...]
    sparse: bool
    wire_format: WireFormat

    def __post_init__(self) -> None:
        one_of("wire_format", self.wire_format, get_args(WireFormat))


# How the names of gradients begin that have a row per camera whatever the scene.
PER_CAMERA = ("camera", "means2d")
WIRE_FORMATS = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}


def fill_spec(
    spec: render_pb2.RenderSpec, request: RenderRequest, reference: scene_pb2.SceneRef | None, payload: PayloadWriter
) -> None:
    """Says what to render; a scene without a `reference` travels with the call, in `payload`."""
    spec.cameras.extend(camera_message(camera) for camera in request.cameras)
    spec.outputs.extend(request.outputs)
    if isinstance(request.settings, SphereSettings):
        spec.spheres.CopyFrom(sphere_settings_message(request.settings))
    else:
        spec.gaussians.CopyFrom(gaussian_settings_message(request.settings))
    if reference is not None:
        spec.scene_ref.CopyFrom(reference)
    elif not isinstance(request.scene, SceneHandle):
        spec.scene.CopyFrom(scene_message(request.scene, payload))


def outputs_of(reply: Reply[Any]) -> tuple[dict[str, Array], dict[str, tuple[bytes, ...]]]:
    """The arrays of a reply, and its files."""
    arrays: dict[str, Array] = {}
    files: dict[str, tuple[bytes, ...]] = {}
    for named in reply.header.outputs:
        array = reply.reader.read(named.tensor, named.name)
        if named.HasField("encoded"):
            files[named.name] = _files(array, named.encoded.lengths)
        else:
            half = named.tensor.dtype in (dtypes.FLOAT16, dtypes.BFLOAT16)
            arrays[named.name] = dtypes.to_float32(array, named.tensor.dtype) if half else array
    return arrays, files


def gradients_of(reply: Reply[Any], single: bool) -> dict[str, Array]:
    """The gradients of a reply; with `single` without the axis of cameras."""
    arrays: dict[str, Array] = {}
    for named in reply.header.gradients:
        array = reply.reader.read(named.tensor, named.name)
        if named.tensor.dtype != dtypes.INT64:
            array = dtypes.to_float32(array, named.tensor.dtype)
        arrays[named.name] = array[0] if single and named.name.startswith(PER_CAMERA) else array
    return arrays


def _files(contents: Array, lengths: Sequence[int]) -> tuple[bytes, ...]:
    ends = list(accumulate(lengths))
    return tuple(contents[end - length : end].tobytes() for end, length in zip(ends, lengths, strict=True))
