"""Sends render requests to the workers, and defines frames and their backward pass."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from lumigrad.client.base.arguments import names, truth
from lumigrad.client.base.arrays import Array, float32_array
from lumigrad.client.base.extras import require
from lumigrad.client.base.timings import Gradients, Timings
from lumigrad.client.errors import InvalidArgument, SceneNotFound, VersionMismatch
from lumigrad.client.rendering.drawn_levels import DrawnLevels
from lumigrad.client.rendering.request import (
    PER_CAMERA,
    WIRE_FORMATS,
    BackwardRequest,
    RenderRequest,
    WireFormat,
    fill_spec,
    gradients_of,
    most_gradient_bytes,
    outputs_of,
)
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.image_format import format_messages
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.transport.call import Call
from lumigrad.client.values.camera_models import PulsarModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.result import Result, added, portions, slowest, together
from lumigrad.client.workers.routing import Route
from lumigrad.client.workers.worker import Kept
from lumigrad.protos.service import RENDER_SERVICE
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2, scene_pb2

# Outputs whose gradients can only be passed if the frame has the output: their derivatives depend on its values.
_NEEDED = (
    *("depth", "expected_depth", "inverse_depth", "hit_distance", "expected_hit_distance", "normals"),
    *("median_depth", "distortion", "surface_normals"),
)


class Frame(Result):
    """The requested outputs of a rendering, as items and as attributes.

    For spheres: `color` [C, H, W, K], `alpha` [C, H, W] (1 - share of the background), `depth` [C, H, W] (distance to
    the closest sphere in scene units; -1 where there is none), `info` [C, H, W, 3 + 2 T] (Pulsar's forward info; the id
    channels are int32 bit patterns, so do not calculate with them), `sphere_ids` int32 [C, H, W, T] (closest first; -1:
    none), `weights` [C, H, W, T] and `hits` int32 [C, H, W].

    For Gaussians: `color` [C, H, W, D], `alpha` [C, H, W], `transmittance` [C, H, W] (1 - alpha), `depth` [C, H, W]
    (camera-space Z, weighted and summed, scene units), `expected_depth` [C, H, W] (depth / alpha), `inverse_depth`
    [C, H, W] (1 / Z, weighted and summed), `contributors` int32 [C, H, W], `ids` int32 [C, H, W] (index in the scene of
    the Gaussian with the largest weight; -1: none was blended); and per Gaussian, 0 where it is culled:
    `radii` int32 [C, N, 2] and `means2d` [C, N, 2] (x, y; pixels), `depths` [C, N], `conics` [C, N, 3] (xx, xy, yy) and
    `projected_opacities` [C, N]. Along rays also `hit_distance` [C, H, W] (distance from the ray's origin to the
    largest response, weighted and summed, scene units), `expected_hit_distance` [C, H, W] (the same / alpha) and
    `normals` [C, H, W, 3] (third axes, turned against the ray, weighted and summed, world frame).

    For surfels not `inverse_depth`, `conics` and `projected_opacities`, but `normals`, `median_depth` [C, H, W] (depth
    of the last surfel blended while the transmittance is above 1/2, scene units), `distortion` [C, H, W] (differences
    of the depths of all pairs, weighted and summed, scene units) and `surface_normals` [C, H, W, 3] (unit normals of
    the surface that `expected_depth` describes, world frame).

    Arrays are float32 unless stated otherwise; outputs requested as uint8 map 0 to 1 to 0 to 255. Outputs requested as
    JPEG or PNG files are in `encoded` instead. The camera axis C is absent if a single camera was passed to render
    instead of a sequence.

    Attributes:
        timings: the timings of the call.
        request: the request that was rendered.
        levels: the part of a scene with levels of detail that was drawn; None for other scenes.
        files: all JPEG or PNG files, by the output's name, one for each camera.
        encoded: JPEG or PNG files by the output's name: one per camera, or a single file for a single camera.
    """

    _advice: ClassVar[str] = "name what you need in render(outputs=…)"

    request: RenderRequest

    def __init__(
        self,
        workers: Pool,
        request: RenderRequest,
        arrays: Mapping[str, Array],
        files: Mapping[str, tuple[bytes, ...]],
        kept: Kept | None,
        timings: Timings,
        reply: render_pb2.RenderReply | render_pb2.RenderedItem | None = None,
    ) -> None:
        """Stores the outputs of a `reply`, which are in `arrays` and `files`, and the levels of detail that it drew."""
        shown = {name: array[0] for name, array in arrays.items()} if request.single else arrays
        super().__init__(workers, request, shown, kept, timings)
        self.files = files
        # The scene that a name of files stood for when the frame was rendered: a file may be replaced at any time.
        is_named = isinstance(request.scene, SceneHandle) and not request.scene.scene_id
        self._drawn = reply.scene if reply is not None and is_named else None
        self.levels: DrawnLevels | None = None
        if reply is not None and reply.HasField("levels"):
            self.levels = DrawnLevels.of(reply.levels)

    @property
    def encoded(self) -> Mapping[str, bytes | tuple[bytes, ...]]:
        """JPEG or PNG files by the output's name: one per camera, or a single file for a single camera."""
        return MappingProxyType(
            {name: views[0] if self.request.single else views for name, views in self.files.items()}
        )

    def decoded(self, name: str) -> Array:
        """Decodes the files of an output to pixels, uint8, shaped as the output. Needs the extra `io`.

        Args:
            name: the output.

        Raises:
            InvalidArgument: the output did not come in files.
            MissingPackage: Pillow is not installed.

        Example:
            frame = client.render(scene, camera, image_format="jpeg")
            frame.decoded("color")  # [H, W, 3] uint8
        """
        image = require("PIL.Image", "io", "decoding images")
        if name not in self.files:
            held = ", ".join(self.files) or "none"
            text = f'expected an output with files, which are {held}, got {name!r}; pass image_format="png" to render'
            raise InvalidArgument.of("name", text)
        files = self.encoded[name]
        if isinstance(files, bytes):
            return np.asarray(image.open(io.BytesIO(files)))
        return np.stack([np.asarray(image.open(io.BytesIO(file))) for file in files])

    def backward(
        self,
        color: Any = None,
        *,
        alpha: Any = None,
        depth: Any = None,
        transmittance: Any = None,
        expected_depth: Any = None,
        inverse_depth: Any = None,
        means2d: Any = None,
        hit_distance: Any = None,
        expected_hit_distance: Any = None,
        normals: Any = None,
        median_depth: Any = None,
        distortion: Any = None,
        surface_normals: Any = None,
        wanted: Sequence[str] = (),
        sparse: bool = False,
        gradient_format: WireFormat = "float32",
        release: bool = False,
        timeout_s: float | None = None,
    ) -> Gradients:
        """Computes the gradients of a loss from its gradients with respect to one or more outputs.

        Uses the forward state that the worker kept; if there is none, the worker renders the frame again.

        Args:
            color: dL/dcolor, shaped as the output, even if the output was not requested.
            alpha: dL/dalpha, shaped as the output, even if it was not requested. Not for spheres in compat.
            depth: dL/ddepth, if the frame has the output. Not for spheres in compat.
            transmittance: dL/dtransmittance, shaped as alpha. This and the following are for Gaussians only.
            expected_depth: dL/dexpected_depth, if the frame has the output.
            inverse_depth: dL/dinverse_depth, if the frame has the output.
            means2d: dL/dmeans2d, added to the gradients that reach the projected centres through the images.
            hit_distance: dL/dhit_distance. This and the following need a frame that has the output.
            expected_hit_distance: dL/dexpected_hit_distance.
            normals: dL/dnormals.
            median_depth: dL/dmedian_depth.
            distortion: dL/ddistortion.
            surface_normals: dL/dsurface_normals.
            wanted: for spheres, any of "positions", "colors", "radii" (if empty: these three), "opacities", "cameras",
                "background", "gamma"; for Gaussians, any of "means", "quats", "scales", "covariances", "opacities",
                "sh", "colors" (if empty: all of these that the scene has), "cameras", "lenses", "rays", "background",
                "transforms", "means2d" and "means2d_abs".
            sparse: transfer only nonzero rows, with their "index"; always the case with levels of detail.
            gradient_format: wire format of gradients per primitive; "float16" and "bfloat16" halve the bytes.
            release: free the forward state on the worker afterwards.
            timeout_s: overrides the client's time-out, seconds.

        Returns:
            The gradients by name, float32, shaped as their inputs.

        Raises:
            InvalidArgument: no gradient was passed, or one has the wrong shape or belongs to an output that the frame
                lacks.
            SceneNotFound: the worker must render the frame again, and no longer has the scene, or its file has changed.
            LumigradError: no worker answered in time, or none has room.

        Example:
            frame = client.render(scene, camera, retain=True)
            gradients = frame.backward(frame.color - 0.5, wanted=("means", "cameras"), release=True)
            gradients.means  # [N, 3]
        """
        passed = {"color": color, "alpha": alpha, "depth": depth}
        of_gaussians = {
            "transmittance": transmittance,
            "expected_depth": expected_depth,
            "inverse_depth": inverse_depth,
            "means2d": means2d,
            "hit_distance": hit_distance,
            "expected_hit_distance": expected_hit_distance,
            "normals": normals,
            "median_depth": median_depth,
            "distortion": distortion,
            "surface_normals": surface_normals,
        }
        method = f"{RENDER_SERVICE}/Backward"
        with self._workers.begin(timeout_s, method, self.request.facts, self._cancellation) as call:
            given = {name: value for name, value in {**passed, **of_gaussians}.items() if value is not None}
            self._check_upstream(given, of_gaussians)
            upstream = {name: self._stacked(name, value) for name, value in given.items()}
            request = BackwardRequest(upstream, names("wanted", wanted), truth("sparse", sparse), gradient_format)
            return self._differentiated(request, call, truth("release", release))

    def _differentiated(self, request: BackwardRequest, call: Call, release: bool) -> Gradients:
        """Does the same as `backward`, for a given request and a call that has already begun."""
        render = self.request
        form = render_pb2.GradientFormat(dtype=WIRE_FORMATS[request.gradient_format], sparse=request.sparse)
        blank = render_pb2.BackwardRequest(spec=render_pb2.BackwardSpec(wanted=request.wanted, format=form))

        upstream, most, drawn = request.output_gradients, most_gradient_bytes(render, request), self._drawn

        def again(spec: render_pb2.BackwardSpec, source: Any, payload: PayloadWriter) -> None:
            fill_spec(spec.render, render, drawn or source, payload)

        ask = partial(self._differentiate, "render", render.stored, blank, again, upstream, call, release, most)
        try:
            reply = ask()
        except (SceneNotFound, VersionMismatch):
            if drawn is None:
                raise
            drawn = self._read_again(drawn, call)
            reply = ask()
        return Gradients(gradients_of(reply, render.single), reply.timings)

    def _read_again(self, drawn: scene_pb2.SceneRef, call: Call) -> scene_pb2.SceneRef:
        """Has a worker read the files of the frame's scene again; raises SceneNotFound if they have changed."""
        assert self.request.stored is not None
        name = self.request.stored.name
        attempts = RoutedAttempts(self._workers, Route(name, is_movable=False), call)
        while True:
            with attempts as worker:
                return worker.store.read_again(name, drawn, attempts.call)

    def _missing(self, name: str) -> str:
        if name in self.encoded:
            return f'"{name}" came in files: frame.encoded["{name}"]; frame.decoded("{name}") gives their pixels'
        return super()._missing(name)

    def _check_upstream(self, given: Mapping[str, Any], of_gaussians: Iterable[str]) -> None:
        spheres = isinstance(self.request.settings, SphereSettings)
        if not given:
            others = " and depth" if spheres else f", depth, {', '.join(of_gaussians)}"
            raise InvalidArgument.of("color", f"expected at least one of color, alpha{others}, got none")
        for name in given:
            if spheres and name in of_gaussians:
                raise InvalidArgument.of(name, "belongs to Gaussians, but this frame shows spheres; leave it out")
            if name in _NEEDED and name not in self:
                raise InvalidArgument.of(name, f"expected a frame that has the output, got {self}; {self._advice}")

    def _stacked(self, name: str, value: Any) -> Array:
        array = float32_array(name, value)
        if name in self and array.shape != self[name].shape:
            raise InvalidArgument.of(
                name, f"expected the shape of the output, {list(self[name].shape)}, got {list(array.shape)}"
            )
        return array[None] if self.request.single else array


# Gradients with a row per primitive, which can be sparse.
_ROWS = ("positions", "colors", "radii", "opacities", "means", "quats", "scales", "covariances", "sh")


class SpreadFrame(Frame):
    """A frame rendered in parts: concatenates the views of its parts, and sums their gradients."""

    _parts: Sequence[Frame]

    def __init__(self, workers: Pool, request: RenderRequest, parts: Sequence[Frame]) -> None:
        """Joins the rendered `parts` of `request`, in the order of its cameras."""
        arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        files = {name: tuple(chain.from_iterable(part.files[name] for part in parts)) for name in parts[0].files}
        super().__init__(workers, request, arrays, files, None, slowest([part.timings for part in parts]))
        self.levels = DrawnLevels.together([part.levels for part in parts])
        self._parts = parts

    def _differentiated(self, request: BackwardRequest, call: Call, release: bool) -> Gradients:
        """Sums the gradients of all parts; gradients per camera are concatenated."""
        asks: list[Callable[[], Gradients]] = []
        begin = 0
        for part in self._parts:
            end = begin + len(part.request.cameras)
            upstream = {name: array[begin:end] for name, array in request.output_gradients.items()}
            piece = replace(request, output_gradients=upstream)
            asks.append(partial(part._differentiated, piece, call, release))
            begin = end
        found = together(asks)
        joined = [name for name in found[0] if name.startswith(PER_CAMERA)]
        if _has_backgrounds(self.request):
            joined.append("background")
            found = [_with_camera_axis(gradients) for gradients in found]
        return added(found, _ROWS, joined)


def _with_camera_axis(gradients: Gradients) -> Gradients:
    """Returns the gradients of a part whose cameras have a background each; the axis is missing for one camera."""
    arrays = dict(gradients)
    if "background" in arrays:
        arrays["background"] = np.atleast_2d(arrays["background"])
    return Gradients(arrays, gradients.timings)


def render(workers: Pool, request: RenderRequest, retain: bool, call: Call, route: Route | None = None) -> Frame:
    """Renders on the scene's worker, or along `route`; with `retain` the worker keeps the forward state."""
    attempts = RoutedAttempts(workers, request.stored, call, route=route)

    def build(payload: PayloadWriter) -> render_pb2.RenderRequest:
        formats = format_messages(request.image_formats, request.jpeg_quality)
        message = render_pb2.RenderRequest(retain=retain, formats=formats)
        fill_spec(message.spec, request, attempts.reference, payload)
        return message

    while True:
        with attempts as worker:
            service = worker.connection.render
            reply = worker.connection.exchange(service.Render, build, attempts.call, request.most_reply_bytes)
            state = reply.header.context_id
            kept = Kept(state, service.Release, attempts.call.affinity, worker) if state else None
            arrays, files = outputs_of(reply.header.outputs, reply.reader)
            return Frame(workers, request, arrays, files, kept, reply.timings, reply.header)


def render_spread(workers: Pool, request: RenderRequest, retain: bool, call: Call) -> Frame:
    """Splits the views over the workers, which render at the same time; uses one worker if they cannot be split."""
    most = len(request.cameras) if _is_divisible(request) else 1
    routes = workers.spread(request.stored, most)
    if len(routes) < 2:
        return render(workers, request, retain, call)
    asks: list[Callable[[], Frame]] = []
    for share, route in zip(portions(len(request.cameras), len(routes)), routes, strict=True):
        part = replace(request, cameras=request.cameras[share], settings=_settings_of(request, share))
        asks.append(partial(render, workers, part, retain, call, route))
    return SpreadFrame(workers, request, together(asks))


def _is_divisible(request: RenderRequest) -> bool:
    """Whether cameras can be rendered apart.

    Cameras cannot if each belongs to one of several scenes or has its own colours, or if the depth range of all begins
    behind the film of the one with the largest focal length.
    """
    scene = request.scene.scene if isinstance(request.scene, SceneHandle) else request.scene
    if isinstance(scene, Gaussians):
        colors = request.tensors.get("colors", None if "sh" in request.tensors else scene.colors)
        return scene.scenes is None and (colors is None or colors.ndim == 2)
    if not isinstance(request.settings, SphereSettings) or not isinstance(scene, Spheres):
        return False
    return request.settings.min_depth > 0 or not any(isinstance(each.model, PulsarModel) for each in request.cameras)


def _has_backgrounds(request: RenderRequest) -> bool:
    """Whether each camera has its own background."""
    channels, background = request.channels, request.settings.background
    return isinstance(request.settings, GaussianSettings) and channels is not None and len(background) > channels


def _settings_of(request: RenderRequest, share: slice) -> SphereSettings | GaussianSettings:
    settings = request.settings
    if isinstance(settings, SphereSettings) or not _has_backgrounds(request):
        return settings
    channels = request.channels
    assert channels is not None
    colors = settings.background[share.start * channels : share.stop * channels]
    return replace(settings, background=colors)
