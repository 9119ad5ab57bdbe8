"""Requests to render and to differentiate, complete enough to repeat them, as values and as protobuf messages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal, NamedTuple, get_args

from lumigrad.client.base.arguments import instance, names, one_of
from lumigrad.client.base.arrays import Array
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.image_format import ImageFormat, ImageFormats, image_formats, jpeg_quality_of
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.transport.connection import Reply
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import InriaModel, OpenCVModel, PulsarModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle, kind_in_words, scene_facts
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.wire.cameras import camera_message, gaussian_settings_message, sphere_settings_message
from lumigrad.client.wire.scenes import named_tensors, scene_message
from lumigrad.protos import dtypes
from lumigrad.protos.tensors import ALIGNMENT, PayloadReader, PayloadWriter
from lumigrad.v1 import render_pb2, scene_pb2, tensor_pb2

WireFormat = Literal["float32", "float16", "bfloat16"]
# Outputs with a fixed number of channels, besides "color".
_ONE_CHANNEL = {"alpha", "depth", "expected_depth"}
# Levels, and scenes that workers read from files themselves, have red, green and blue.
_CHANNELS_OF_FILES = 3
_SPHERE_MODELS = (PulsarModel, OpenCVModel)


class Look(NamedTuple):
    """The parts of a rendering's messages that follow from settings and outputs.

    Attributes:
        spec: a serialized RenderSpec without its scene, cameras and tensors.
        pixel_bytes: the most bytes of all outputs for one pixel; infinity unless all are images with a known number of
            channels.
    """

    spec: bytes
    pixel_bytes: float


def _look(settings: SphereSettings | GaussianSettings, outputs: tuple[str, ...], channels: int | None) -> Look:
    """Returns the look of settings and outputs, cached; `channels` counts colour channels, None if unknown."""
    look: Look | None = settings.kept.get((outputs, channels))
    if look is None:
        spec = render_pb2.RenderSpec(outputs=outputs)
        if isinstance(settings, SphereSettings):
            spec.spheres.CopyFrom(sphere_settings_message(settings))
        else:
            spec.gaussians.CopyFrom(gaussian_settings_message(settings))
        most = math.inf
        if channels is not None and set(outputs) <= {"color", *_ONE_CHANNEL}:
            most = 4 * sum(channels if name == "color" else 1 for name in outputs)
        look = settings.kept[outputs, channels] = Look(spec.SerializeToString(), most)
    return look


@dataclass(frozen=True)
class RenderRequest:
    """One call of render.

    Attributes:
        scene: a scene sent with the call, or the handle of a stored one.
        cameras: all with the same image size.
        single: whether one camera was passed instead of a sequence; results then have no camera axis.
        settings: settings for this kind of scene; defaults that depend on scene and cameras are filled in.
        outputs: the names of the requested arrays.
        image_formats: wire formats of outputs, by name; float32 for all others.
        jpeg_quality: 1 to 100; 0: the worker's choice.
        tensors: tensors by name that replace those of a stored scene in this call.
        look: the parts of its messages that follow from settings and outputs.
    """

    scene: Spheres | Gaussians | SceneHandle
    cameras: tuple[Camera, ...]
    single: bool
    settings: SphereSettings | GaussianSettings
    outputs: tuple[str, ...]
    image_formats: ImageFormats = field(default_factory=dict)
    jpeg_quality: int = 0
    tensors: Mapping[str, Array] = field(default_factory=dict)
    look: Look = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        settings, is_open = self.settings, self.settings.is_open
        spheres = isinstance(settings, SphereSettings)
        for camera in self.cameras:
            model = camera.model
            if not isinstance(model, _SPHERE_MODELS) if spheres else isinstance(model, PulsarModel):
                known = "pulsar or opencv for spheres" if spheres else "opencv, inria or sensor for Gaussians"
                raise InvalidArgument.of("camera", f"expected {known}, got {type(model).__name__}")
            if spheres and isinstance(model, OpenCVModel):
                model.check_for_spheres()
            is_open = is_open or isinstance(model, InriaModel)
        channels = self.channels if self.tensors else channels_of(self.scene)
        if is_open and isinstance(settings, SphereSettings):
            settings = settings.filled(self._known_spheres(), self.cameras, channels)
        elif is_open and isinstance(settings, GaussianSettings):
            settings = settings.filled(self.cameras, channels)
        vars(self).update(settings=settings, look=_look(settings, self.outputs, channels))

    def _known_spheres(self) -> Spheres | None:
        """Returns the spheres to draw, or None for a stored scene if its handle has no copy."""
        known = self.scene.scene if isinstance(self.scene, SceneHandle) else self.scene
        if not isinstance(known, Spheres):
            return None
        return Spheres(**{**known.tensors, **self.tensors}) if self.tensors else known

    @property
    def stored(self) -> SceneHandle | None:
        """The handle of the stored scene, which decides the worker; None if the scene is sent with the call."""
        return self.scene if isinstance(self.scene, SceneHandle) else None

    @property
    def channels(self) -> int | None:
        """The number of colour channels; None for a stored scene if its handle has no copy."""
        for name in ("sh", "colors"):
            if name in self.tensors:
                return int(self.tensors[name].shape[-1])
        return channels_of(self.scene)

    @property
    def most_reply_bytes(self) -> float:
        """The most bytes of the outputs; infinity unless all are images with a known number of channels."""
        camera = self.cameras[0]
        pixels = camera.width * camera.height * len(self.cameras)
        return self.look.pixel_bytes * pixels + ALIGNMENT * len(self.outputs)

    def facts(self) -> dict[str, str | int]:
        """Returns the attributes of the trace span: the scene and the size of the rendering."""
        pixels = sum(camera.width * camera.height for camera in self.cameras)
        return {**scene_facts(self.scene), "cameras": len(self.cameras), "pixels": pixels}


def request_of(
    scene: Spheres | Gaussians | SceneHandle,
    camera: Camera | Sequence[Camera],
    *,
    settings: SphereSettings | GaussianSettings | None = None,
    outputs: Sequence[str] = ("color",),
    image_format: ImageFormat | ImageFormats = "float32",
    jpeg_quality: int | None = None,
    **fields: Any,
) -> RenderRequest:
    """Returns the request of `Client.render` with these arguments."""
    kind = settings_kind(scene)
    cameras = (camera,) if isinstance(camera, Camera) else cameras_of(camera)
    chosen = kind.from_fields(settings, fields)
    wanted = names("outputs", outputs)
    formats = image_formats(image_format, wanted)
    quality = 0 if jpeg_quality is None else jpeg_quality_of(jpeg_quality, formats)
    return RenderRequest(scene, cameras, isinstance(camera, Camera), chosen, wanted, formats, quality)


def settings_kind(scene: Spheres | Gaussians | SceneHandle) -> type[SphereSettings] | type[GaussianSettings]:
    """Returns the type of the settings for renderings of a scene.

    Raises:
        InvalidArgument: `scene` is neither spheres nor Gaussians, nor a handle of either.
    """
    if not isinstance(scene, SceneHandle):
        advice = "pass Spheres(positions, colors, radii), Gaussians(…), or a handle from put or get"
        instance("scene", scene, (Spheres, Gaussians, SceneHandle), advice)
        return SphereSettings if isinstance(scene, Spheres) else GaussianSettings
    if scene.kind not in ("spheres", "gaussians", "levels"):
        advice = "" if scene.kind == "target" else "; pass it to query, for distances"
        text = f"expected spheres or gaussians, got {kind_in_words(scene.kind)}{advice}"
        raise InvalidArgument.of("scene", text)
    return SphereSettings if scene.kind == "spheres" else GaussianSettings


def cameras_of(camera: Any) -> tuple[Camera, ...]:
    """Returns the cameras of a sequence, which must not be empty."""
    advice = "make one with Camera.look_at, orbit, opencv, sensor, pulsar or inria"
    # A string is iterable, but its letters are not what the caller passed.
    instance("camera", camera, (Camera,) if isinstance(camera, str) else (Camera, Iterable), advice)
    cameras = tuple(camera)
    for entry in cameras:
        instance("camera", entry, (Camera,), advice)
    if not cameras:
        raise InvalidArgument.of("camera", f"expected a Camera or a sequence of at least one, got none; {advice}")
    return cameras


def channels_of(scene: Spheres | Gaussians | SceneHandle | None) -> int | None:
    """Returns the number of colour channels, or None for a stored scene that was sent if its handle has no copy."""
    if isinstance(scene, SceneHandle) and (scene.kind == "levels" or not scene.scene_id):
        return _CHANNELS_OF_FILES
    known = scene.scene if isinstance(scene, SceneHandle) else scene
    return known.channels if isinstance(known, Spheres | Gaussians) else None


@dataclass(frozen=True)
class BackwardRequest:
    """One call of backward.

    Attributes:
        output_gradients: dL/d output by the output's name, with the camera axis.
        wanted: the names of the inputs to differentiate; empty: the tensors of the scene.
        sparse: transfer only nonzero rows.
        gradient_format: wire format of gradients per primitive.
    """

    output_gradients: Mapping[str, Array]
    wanted: tuple[str, ...]
    sparse: bool
    gradient_format: WireFormat

    def __post_init__(self) -> None:
        one_of("gradient_format", self.gradient_format, get_args(WireFormat))


def most_gradient_bytes(request: RenderRequest, backward: BackwardRequest) -> float:
    """Returns the most bytes of the gradients; infinity unless they are dense and belong to tensors of known size."""
    scene = request.scene.scene if isinstance(request.scene, SceneHandle) else request.scene
    is_known = isinstance(scene, Spheres | Gaussians) and scene.tensors.keys() >= set(backward.wanted)
    if not is_known or request.tensors or backward.sparse:
        return math.inf
    assert isinstance(scene, Spheres | Gaussians)
    return scene.nbytes + ALIGNMENT * len(scene.tensors)


# Name prefixes of gradients that have one row per camera for every kind of scene.
PER_CAMERA = ("camera", "means2d", "lens_", "windshield_", "lidar_", "rays")
_HALVES = (dtypes.FLOAT16, dtypes.BFLOAT16)
WIRE_FORMATS = {"float32": dtypes.FLOAT32, "float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}


def fill_spec(
    spec: render_pb2.RenderSpec, request: RenderRequest, reference: scene_pb2.SceneRef | None, payload: PayloadWriter
) -> None:
    """Fills `spec` from `request`; appends the call's own tensors and, without `reference`, the scene to `payload`."""
    for camera in request.cameras:
        spec.cameras.append(camera_message(camera, payload))
    fill_around_cameras(spec, request, reference, payload)


def fill_around_cameras(
    spec: render_pb2.RenderSpec, request: RenderRequest, reference: scene_pb2.SceneRef | None, payload: PayloadWriter
) -> None:
    """Fills all of `spec` except its cameras; see `fill_spec`."""
    spec.MergeFromString(request.look.spec)
    if reference is not None:
        spec.scene_ref.CopyFrom(reference)
        if request.tensors:
            spec.tensors.extend(named_tensors(request.tensors, payload))
    elif not isinstance(request.scene, SceneHandle):
        spec.scene.CopyFrom(scene_message(request.scene, payload))


def outputs_of(
    outputs: Iterable[tensor_pb2.NamedTensor], reader: PayloadReader
) -> tuple[dict[str, Array], dict[str, tuple[bytes, ...]]]:
    """Returns the arrays and the image files of a reply, read from the tensors that it names."""
    arrays: dict[str, Array] = {}
    files: dict[str, tuple[bytes, ...]] = {}
    for named in outputs:
        array = reader.read(named.tensor, named.name)
        if named.HasField("encoded"):
            ends = list(accumulate(named.encoded.lengths))
            files[named.name] = tuple(
                array[end - length : end].tobytes() for end, length in zip(ends, named.encoded.lengths, strict=True)
            )
        else:
            is_half = named.tensor.dtype in _HALVES
            arrays[named.name] = dtypes.to_float32(array, named.tensor.dtype) if is_half else array
    return arrays, files


def gradients_of(reply: Reply[Any], single: bool) -> dict[str, Array]:
    """Returns the gradients of a reply; with `single` without the camera axis."""
    arrays: dict[str, Array] = {}
    for named in reply.header.gradients:
        array = reply.reader.read(named.tensor, named.name)
        if named.tensor.dtype in _HALVES:
            array = dtypes.to_float32(array, named.tensor.dtype)
        arrays[named.name] = array[0] if single and named.name.startswith(PER_CAMERA) else array
    return arrays
