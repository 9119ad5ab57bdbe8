"""One scene over several workers: each holds a part of the Gaussians, and draws a band of each image."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError

from lumigrad.client.base.arguments import names, whole_number
from lumigrad.client.base.arrays import Float32, float32_array
from lumigrad.client.errors import DeadlineExceeded, InvalidArgument, Unavailable
from lumigrad.client.formats.clustering import morton_order
from lumigrad.client.rendering.request import cameras_of
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import InriaModel, OpenCVModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.kernels import gaussians
from lumigrad.ray.bands import TILE, edges_of, shared_out
from lumigrad.ray.finding import connect
from lumigrad.ray.part import NUMBERS, Part, Restarted, View

Result = TypeVar("Result")
# The supported settings, which concern Gaussians drawn as ellipses in the image; all others must have their defaults.
_SETTINGS = (
    *("semantics", "sh_degree", "antialiased", "deterministic", "eps2d", "near", "far", "radius_clip", "alpha_min"),
    *("alpha_max", "transmittance_min", "pixel_center", "scale_modifier", "background"),
)
# Outputs per pixel; outputs per Gaussian are not supported.
_OUTPUTS = gaussians.IMAGES


class _Drawn(NamedTuple):
    """A rendered view, and the rows of tiles of each worker."""

    view: View
    rows: list[tuple[int, int]]


class SplitScene:
    """A scene over several workers; create one with `split`. Calls from several threads run one after the other.

    Attributes:
        received_bytes: bytes that workers received from each other in the last call of `render`.
    """

    def __init__(
        self, actors: Sequence[Any], lives: Sequence[str], given: Sequence[Any], scene: Gaussians, timeout_s: float
    ) -> None:
        """Takes started actors; `given` are their parts, which Ray passes again to restarted actors."""
        self.received_bytes = 0
        self._given = given
        self._actors, self._lives, self._timeout_s = list(actors), list(lives), timeout_s
        self._degree, self._channels, self._tensors = scene.sh_degree, scene.channels, tuple(scene.tensors)
        self._shape = {name: array.shape for name, array in scene.tensors.items()}
        self._calls, self._lock = itertools.count(), threading.Lock()
        self._drawn: list[_Drawn] = []
        self._single = False
        self._is_updated = False

    def __enter__(self) -> SplitScene:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the workers."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors, self._given = [], ()

    def render(
        self,
        camera: Camera | Sequence[Camera],
        *,
        settings: GaussianSettings | None = None,
        outputs: Sequence[str] = ("color",),
        retain: bool = False,
        **fields: Any,
    ) -> dict[str, np.ndarray]:
        """Renders the scene. Images are those of a single worker, bit by bit.

        Args:
            camera: one camera of OpenCV's or Inria's, or a sequence of them, which adds a first axis to the results.
            settings: None: the defaults. Settings of sensors, rays, surfels, levels and transforms are refused.
            outputs: any of "color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth",
                "contributors", "ids"; see `lumigrad.client.Frame`.
            retain: keep the states that `backward` needs; they replace those of an earlier call.
            fields: fields of the settings by name, for this call only.

        Raises:
            InvalidArgument: an argument is wrong, or split scenes do not support it.
            DeadlineExceeded: workers did not answer in time.
            Unavailable: a worker is gone for good, or was restarted after `update` and has lost its changes.

        Example:
            frame = scene.render(camera, outputs=("color", "alpha"), background=1.0)
            frame["color"]  # [H, W, D]
        """
        cameras = (camera,) if isinstance(camera, Camera) else cameras_of(camera)
        views = self._views(cameras, settings, names("outputs", outputs), retain, fields)
        with self._lock:
            until = time.monotonic() + self._timeout_s
            # The parts drop the retained state of an earlier call.
            self._drawn = [] if retain else self._drawn
            while True:
                call = next(self._calls)
                try:
                    drawn, images, moved = self._draw([replace(view, call=call) for view in views], until)
                    break
                except Restarted as restarted:
                    self._meet(restarted)
            self.received_bytes = moved
            if retain:
                self._drawn, self._single = drawn, isinstance(camera, Camera)
        return {name: image[0] for name, image in images.items()} if isinstance(camera, Camera) else images

    def backward(self, output_gradients: Mapping[str, Any]) -> None:
        """Differentiates the last rendering with `retain`. The parts keep the gradients of their Gaussians.

        Args:
            output_gradients: dL/d output by the output's name, shaped as the rendering returned it.

        Raises:
            InvalidArgument: there is no such rendering, or a gradient has the wrong shape.
            DeadlineExceeded: workers did not answer in time.
            Unavailable: a worker was restarted after the rendering; render again.

        Example:
            scene.render(camera, retain=True)
            scene.backward({"color": gradient})
            scene.gradients()["means"]  # [N, 3]
        """
        with self._lock:
            drawn = self._drawn
            if not drawn:
                raise InvalidArgument.of("output_gradients", "expected those of a rendering with retain=True, got none")
            if not output_gradients:
                raise InvalidArgument.of("output_gradients", "expected the gradient of an output at least, got none")
            given = {name: self._checked(name, array, drawn) for name, array in output_gradients.items()}
            self._drawn = []
            until = time.monotonic() + self._timeout_s
            ends = [end for entry in drawn for end in self._differentiate(entry, given)]
            self._stateful(lambda: self._get(ends, until))

    def gradients(self) -> dict[str, np.ndarray]:
        """Returns the gradients of the last `backward`, in the order of the scene, by the names of its tensors.

        Raises:
            Unavailable: a worker was restarted meanwhile.

        Example:
            scene.gradients()["opacities"]  # [N]
        """
        with self._lock:
            refs = [actor.gathered.remote(life) for actor, life in self._known()]
            parts = self._stateful(lambda: self._get(refs, time.monotonic() + self._timeout_s))
        whole = {name: np.zeros(self._shape[name], np.float32) for name in self._tensors}
        for part in parts:
            for name in part.keys() - {NUMBERS}:
                whole[name][part[NUMBERS]] = part[name]
        return whole

    def update(self, change: Callable[..., Result], *arguments: Any) -> list[Result]:
        """Calls `change(part, *arguments)` for each part, on its worker, which may change `part.tensors`.

        From then on, a restarted worker makes later calls fail, because it has its initial part again.

        Args:
            change: a function of a `Part`, e.g. a step of an optimiser with `part.tensors` and `part.gradients`.
            arguments: further arguments of `change`.

        Returns:
            The result of `change` for each part.

        Raises:
            Unavailable: a worker was restarted, and has lost gradients or earlier changes.

        Example:
            def step(part, rate):
                for name, gradient in part.gradients.items():
                    part.tensors[name] -= rate * gradient

            scene.update(step, 1e-3)
        """
        with self._lock:
            self._drawn = []
            refs = [actor.update.remote(life, change, *arguments) for actor, life in self._known()]
            self._is_updated = True
            return self._stateful(lambda: self._get(refs, time.monotonic() + self._timeout_s))

    def _views(
        self,
        cameras: Sequence[Camera],
        settings: GaussianSettings | None,
        outputs: tuple[str, ...],
        retain: bool,
        fields: Mapping[str, Any],
    ) -> list[View]:
        given = GaussianSettings.from_fields(settings, fields).filled(cameras, self._channels)
        sizes = sorted({(camera.width, camera.height) for camera in cameras})
        if len(sizes) > 1:
            raise InvalidArgument.of("camera", f"expected one size for all of a call, got {sizes}")
        for name in outputs:
            if name not in _OUTPUTS:
                raise InvalidArgument.of("outputs", f"expected names of {_OUTPUTS} for a split scene, got {name!r}")
        values = {name: value for name, value in given.values().items() if value is not None}
        for name in values.keys() - set(_SETTINGS):
            if values[name] != getattr(GaussianSettings, name):
                text = f"expected the default for a split scene, got {values[name]!r}; use Client.render with it"
                raise InvalidArgument.of(name, text)
        degree = values.get("sh_degree")
        if degree is not None and (self._degree is None or degree > self._degree):
            text = "none, since it has colors" if self._degree is None else f"at most {self._degree}, as it is stored"
            raise InvalidArgument.of("sh_degree", f"expected {text}, got {degree}")
        background = np.asarray(values.pop("background") or [0.0] * self._channels, np.float32)
        if background.size not in (self._channels, len(cameras) * self._channels):
            text = f"expected {self._channels} values, or as many for each camera, got {background.size}"
            raise InvalidArgument.of("background", text)
        backgrounds = np.broadcast_to(background.reshape(-1, self._channels), (len(cameras), self._channels))
        made = gaussians.Settings(**{name: values[name] for name in _SETTINGS if name in values})
        return [
            View(0, index, _camera(camera), made, outputs, backgrounds[index], retain)
            for index, camera in enumerate(cameras)
        ]

    def _draw(self, views: Sequence[View], until: float) -> tuple[list[_Drawn], dict[str, np.ndarray], int]:
        """Draws the views one after the other, each band on a worker that has many of its Gaussians."""
        counts = [[actor.project.remote(life, view) for actor, life in self._known()] for view in views]
        drawn, refs = [], []
        for view, pending in zip(views, counts, strict=True):
            found = np.stack(self._get(pending, until))
            edges = edges_of(found, len(self._actors), view.camera.width)
            band_of = shared_out(found, edges)
            rows = [(edges[band], edges[band + 1]) for band in band_of]
            sent = [self._each(actor.send, life, view, edges, band_of) for actor, life in self._known()]
            refs += [
                actor.draw.remote(life, view, *rows[worker], *(pieces[worker] for pieces in sent))
                for worker, (actor, life) in enumerate(self._known())
            ]
            drawn.append(_Drawn(view, rows))
        bands = self._get(refs, until)
        images: dict[str, np.ndarray] = {}
        for (entry, (begin, end)), (band, _) in zip(((e, r) for e in drawn for r in e.rows), bands, strict=True):
            camera = entry.view.camera
            for name, array in band.items():
                shape = (len(views), camera.height, *array.shape[1:])
                if name not in images:
                    images[name] = np.empty(shape, array.dtype)
                images[name][entry.view.index, begin * TILE : min(end * TILE, camera.height)] = array
        return drawn, images, sum(moved for _, moved in bands)

    def _differentiate(self, entry: _Drawn, given: Mapping[str, Float32]) -> list[Any]:
        """Sends the rows of gradients to the workers that drew them, and the Gaussians' gradients back to the parts."""
        view, back = entry.view, []
        for (actor, life), (begin, end) in zip(self._known(), entry.rows, strict=True):
            rows = {name: array[view.index, begin * TILE : end * TILE] for name, array in given.items()}
            back.append(self._each(actor.differentiate, life, view, rows))
        return [
            actor.collect.remote(life, view, *(pieces[worker] for pieces in back))
            for worker, (actor, life) in enumerate(self._known())
        ]

    def _checked(self, name: str, array: Any, drawn: Sequence[_Drawn]) -> Float32:
        """Returns a checked gradient of an output, with the camera axis."""
        camera, outputs = drawn[0].view.camera, drawn[0].view.outputs
        if name not in outputs or name in ("contributors", "ids"):
            raise InvalidArgument.of("output_gradients", f"expected names of the outputs {outputs}, got {name!r}")
        shape = (len(drawn), camera.height, camera.width, *([self._channels] if name == "color" else []))
        return float32_array(f"output_gradients[{name!r}]", array, shape[1:] if self._single else shape).reshape(shape)

    def _known(self) -> Iterable[tuple[Any, str]]:
        if not self._actors:
            raise Unavailable("the split scene was closed; split it again")
        return zip(self._actors, self._lives, strict=True)

    def _each(self, method: Any, *arguments: Any) -> list[Any]:
        """Calls a method that has one result for each worker; returns the results."""
        found = method.options(num_returns=len(self._actors)).remote(*arguments)
        return [found] if len(self._actors) == 1 else found

    def _get(self, refs: Sequence[Any], until: float) -> list[Any]:
        try:
            return list(ray.get(list(refs), timeout=max(0.0, until - time.monotonic())))
        except GetTimeoutError as error:
            text = f"the workers of the split scene did not answer within {self._timeout_s:g} s; see `ray status`"
            raise DeadlineExceeded(text) from error
        except RayActorError as error:
            raise Unavailable(f"a worker of the split scene is gone for good; split it again: {error}") from error

    def _stateful(self, run: Callable[[], list[Any]]) -> list[Any]:
        """Runs a function that needs an earlier call's state; raises Unavailable if a worker was restarted since."""
        try:
            return run()
        except Restarted as restarted:
            self._meet(restarted)
            text = f"worker {restarted.index} of the split scene was started again, and has lost its state"
            raise Unavailable(f"{text}; render again, with retain=True") from restarted

    def _meet(self, restarted: Restarted) -> None:
        """Accepts a restarted worker; raises Unavailable if it has lost the changes of `update`."""
        if self._is_updated:
            text = f"worker {restarted.index} was started again, and has lost what update() changed"
            raise Unavailable(f"{text}; split the scene again, as you saved it last") from restarted
        self._lives[restarted.index] = restarted.life


def split(
    scene: Gaussians, workers: int = 2, *, cpus: float = 1.0, gpus: float = 0.0, timeout_s: float = 300.0
) -> SplitScene:
    """Divides a scene among new actors of the Ray cluster, each with a part of the Gaussians.

    For a camera, each worker projects its part and sends visible Gaussians to the workers whose rows of tiles they
    reach. Each worker sorts and blends its rows without the others. Gradients go back the same way.

    Args:
        scene: one scene, with the same colours for all cameras.
        workers: the number of parts.
        cpus: Ray's CPUs for each worker, which computes with this number of threads, but at least one.
        gpus: Ray's GPUs for each worker: 1, or a fraction of one; 0: workers compute on the CPU.
        timeout_s: how long the start and each call may take, seconds.

    Raises:
        InvalidArgument: there are several scenes, colours for each camera, or an invalid number of workers.
        DeadlineExceeded: the cluster has no room for so many workers, or they do not start in time.
        Unavailable: a worker cannot start, e.g. without CUDA on a node with GPUs.

    Example:
        with lumigrad.ray.split(Gaussians.load("scene.ply"), workers=4) as scene:
            image = scene.render(camera)["color"]
    """
    count = whole_number("workers", workers, 1, 1 << 10)
    if scene.scenes is not None or (scene.colors is not None and scene.colors.ndim == 3):
        raise InvalidArgument.of("scene", "expected one scene with the same colours for all cameras; split each alone")
    connect()
    actors: list[Any] = []
    given = []
    for index, numbers in enumerate(np.array_split(morton_order(scene.means), count)):
        # Engines also number Gaussians with 32 bits.
        rows = np.sort(numbers).astype(np.int32)
        given.append(ray.put({name: array[rows] for name, array in scene.tensors.items()}))
        # Calls that a restart interrupts are repeated on the new actor, which refuses them because its life differs.
        placed = ray.remote(Part).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=-1, max_task_retries=-1, scheduling_strategy="SPREAD",
        )  # fmt: skip
        actors.append(placed.remote(index, rows, given[-1], "cuda:0" if gpus else "cpu"))
    try:
        lives = ray.get([actor.life.remote() for actor in actors], timeout=timeout_s)
    except (GetTimeoutError, RayActorError) as error:
        for actor in actors:
            ray.kill(actor)
        if isinstance(error, RayActorError):
            raise Unavailable(f"a worker of the split scene cannot start: {error}") from error
        text = f"not all of {count} workers have started within {timeout_s:g} s; see `ray status` for room"
        raise DeadlineExceeded(text) from error
    return SplitScene(actors, lives, given, scene, timeout_s)


def _camera(camera: Camera) -> gaussians.Camera:
    """Returns the kernels' camera."""
    model, size = camera.model, (camera.width, camera.height)
    if isinstance(model, InriaModel):
        arrays = model.view_matrix, model.full_projection, model.eye
        return gaussians.Camera.inria(*arrays, model.tan_fov_x, model.tan_fov_y, *size)
    if not isinstance(model, OpenCVModel):
        kind = type(model).__name__
        raise InvalidArgument.of("camera", f"expected OpenCV's or Inria's for a split scene, got {kind}")
    film, pose = (model.fx, model.fy, model.cx, model.cy), (model.rotation, model.translation)
    return gaussians.Camera.opencv(*film, *pose, *size, model=model.projection, distortion=model.distortion)
