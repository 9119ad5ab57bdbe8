"""The methods of `Client` that start trainings, and the views that trainings use."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from os import PathLike, fspath
from types import NoneType
from typing import TYPE_CHECKING, Any, TypeVar

from lumigrad.client.base.arguments import instance, number, whole_number
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.errors import InvalidArgument, LumigradError, SceneNotFound, TrainingLost, Unavailable
from lumigrad.client.rendering.request import RenderRequest, settings_kind
from lumigrad.client.settings.fields import RenderFields
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.training.options import (
    AdaptiveDensity,
    Loss,
    Mcmc,
    Rate,
    Rates,
    calibrations_of,
    default_rates,
    extent_of,
    rates_message,
    warn_of_large_rates,
    warn_of_room,
)
from lumigrad.client.training.stream import Restore, TrainingStream
from lumigrad.client.training.trainer import Trainer
from lumigrad.client.transport.call import Call, Cancellable
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle, check_is_sent, kind_in_words, scene_facts
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.values.target_image import TargetImage
from lumigrad.client.wire.cameras import camera_message, gaussian_settings_message, sphere_settings_message
from lumigrad.client.workers.attempts import RoutedAttempts
from lumigrad.client.workers.pool import Pool
from lumigrad.client.workers.scene_store import SceneStore
from lumigrad.client.workers.worker import Worker
from lumigrad.protos.service import TRAINING_SERVICE
from lumigrad.v1 import training_pb2

if TYPE_CHECKING:
    from typing_extensions import Unpack

T = TypeVar("T")
U = TypeVar("U")

# Concurrent transfers: the hash of one image is computed while others are transferred.
_TRANSFERS = 4
# Tensors that a scene may have of which the client has no copy: most Gaussians have harmonics.
_GUESSED_TENSORS = ("sh", "opacities")


class TargetImages:
    """The target images of views, or functions that return them; kept to store them again if a worker loses them."""

    def __init__(self, target_images: Sequence[Any]) -> None:
        """Takes for each view a TargetImage, the handle of a stored one, an image, or a function that returns one."""
        self._target_images = [
            each if callable(each) else _target_image(view, each) for view, each in enumerate(target_images)
        ]

    def __len__(self) -> int:
        return len(self._target_images)

    @staticmethod
    def downloaded(hashes: Sequence[str], store: SceneStore, call: Call) -> TargetImages:
        """Downloads target images from the worker by their content hashes."""

        def get(digest: str) -> list[Any]:
            try:
                return [store.get(digest, True, call, field="content_hash").scene]
            except SceneNotFound:
                # The store has evicted the target image, but the training keeps it in memory.
                return []

        return TargetImages([image for found in _each(get, dict.fromkeys(hashes)) for image in found])

    def put(self, store: SceneStore, call: Call) -> list[str]:
        """Stores the target images that the worker does not have; returns all content hashes."""

        def put(numbered: tuple[int, TargetImage | SceneHandle | Callable[[], Any]]) -> str:
            view, given = numbered
            image = _target_image(view, given()) if callable(given) else given
            # Each image has its own time-out, which excludes the time to read the photograph.
            own = call.renewed(call.timeout_s)
            return (store.put(image, own) if isinstance(image, TargetImage) else image).content_hash

        return _each(put, enumerate(self._target_images))


class Views:
    """Cameras and their target images."""

    def __init__(
        self, cameras: Sequence[Camera], target_images: Sequence[Any] | None, calibrations: Sequence[int] | None = None
    ) -> None:
        """Stores the views, without uploading target images.

        Args:
            cameras: the cameras.
            target_images: one for each camera, as for `TargetImages`; None: there are none.
            calibrations: for each camera a number; cameras with the same number share a lens. None: cameras with equal
                lenses share them.
        """
        self.cameras = tuple(cameras)
        for camera in self.cameras:
            instance("cameras", camera, (Camera,), "make one with Camera.look_at, orbit, opencv, pulsar or inria")
        if not self.cameras:
            raise InvalidArgument.of("cameras", "expected at least one camera, got none")
        self._target_images = None if target_images is None else TargetImages(target_images)
        if self._target_images is not None and len(self._target_images) != len(self.cameras):
            text = f"expected {len(self.cameras)}, one for each camera, got {len(self._target_images)}"
            raise InvalidArgument.of("target_images", text)
        self._hashes: list[str] = [""] * len(self.cameras)
        given = calibrations_of(self.cameras) if calibrations is None else calibrations
        self._calibrations = [whole_number("calibrations", number, 0, (1 << 32) - 1) for number in given]
        if len(self._calibrations) != len(self.cameras):
            text = f"expected {len(self.cameras)} numbers, one for each camera, got {len(self._calibrations)}"
            raise InvalidArgument.of("calibrations", text)

    @property
    def has_target_images(self) -> bool:
        """Whether the worker can compute a loss."""
        return self._target_images is not None

    def put(self, store: SceneStore, call: Call) -> None:
        """Stores the target images that the worker does not have."""
        if self._target_images is not None:
            self._hashes = self._target_images.put(store, call)

    def messages(self) -> list[training_pb2.TrainingView]:
        """Returns the protobuf messages of the views; the target images must have been put."""
        return [
            training_pb2.TrainingView(camera=camera_message(camera), target=digest, calibration=calibration)
            for camera, digest, calibration in zip(self.cameras, self._hashes, self._calibrations, strict=True)
        ]


def _each(work: Callable[[T], U], items: Iterable[T]) -> list[U]:
    """Applies `work` to each item, several at a time, and returns the results."""
    with ThreadPoolExecutor(_TRANSFERS, "lumigrad target images") as pool:
        return list(pool.map(work, items))


def _target_image(view: int, value: Any) -> TargetImage | SceneHandle:
    """Converts the target image of a view; errors name the view."""
    name = f"target_images[{view}]"
    if isinstance(value, SceneHandle):
        if value.kind != "target" or not value.content_hash:
            text = f"expected the handle of a target image, got one of {kind_in_words(value.kind)}"
            raise InvalidArgument.of(name, text)
        return value
    if isinstance(value, str | PathLike):
        advice = "read the file, or pass a function that returns its pixels"
        raise InvalidArgument.of(name, f"expected an image, got the path {fspath(value)!r}; {advice}")
    try:
        return value if isinstance(value, TargetImage) else TargetImage(value)
    except InvalidArgument as error:
        raise InvalidArgument.of(name, str(error)) from error


_MOST = 1 << 40
_START_ID_BYTES = 16


class TrainingCalls(Cancellable):
    """Starts and resumes trainings on the worker."""

    _workers: Pool

    def trainer(
        self,
        /,
        scene: Spheres | Gaussians | SceneHandle,
        cameras: Sequence[Camera],
        target_images: Sequence[Any] | None = None,
        *,
        settings: SphereSettings | GaussianSettings | None = None,
        loss: Loss | None = None,
        total_steps: int = 30_000,
        rates: Rates | None = None,
        refine_poses: Rate | float | None = None,
        refine_end_poses: Rate | float | None = None,
        refine_intrinsics: Rate | float | None = None,
        refine_lenses: Rate | float | None = None,
        calibrations: Sequence[int] | None = None,
        refine_exposures: Rate | float | None = None,
        density: AdaptiveDensity | Mcmc | None = None,
        extent: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-15,
        visible_only: bool = False,
        pool_bytes: int = 0,
        sh_degree_every: int = 0,
        seed: int = 0,
        snapshot_every: int = 0,
        timeout_s: float | None = None,
        **fields: Unpack[RenderFields],
    ) -> Trainer:
        """Starts a training on the worker, which holds the parameters, the optimiser and, with target images, the loss.

        Args:
            scene: the initial scene: a handle, or spheres or Gaussians, which are stored. Only one client at a time may
                train a scene.
            cameras: the views, numbered from 0.
            target_images: one for each view: `TargetImage`s, their handles, or images [H, W, K], uint8 or float32. A
                function instead of an image returns it when it is sent, so that only a few images are in memory; it is
                called in other threads, and again if the worker has lost the image. None: `Trainer.batches` returns
                the rendered images for the client's own loss.
            settings: settings of the renderings, as for `render`, without transforms.
            loss: the loss between renderings and target images, which it needs; None: 0.8 L1 + 0.2 (1 - SSIM).
            total_steps: the number of steps over which the default rates of positions fall to a hundredth.
            rates: learning rates by parameter: for Gaussians "means", "quats", "scales" (logarithms), "opacities"
                (logits) and "sh0", "sh_rest" or "colors"; for spheres "positions", "colors", "radii" (logarithms),
                "opacities" (logits). Other parameters are not optimised. None: default rates.
            refine_poses: learning rate of the poses of OpenCV cameras and sensors, in radians and scene units. Adam
                moves a pose by about the rate in each step of its view, so choose the expected error divided by a
                quarter of the number of steps per view: 1e-3 for an error of 0.05 and 200 steps. None: poses are fixed.
                A rate above 0.1 causes a warning, as for all that is refined.
            refine_end_poses: learning rate of the poses at the end of rolling shutters; None: `refine_poses` moves both
                ends together.
            refine_intrinsics: learning rate of focal lengths and principal points, in units of the focal length: 1e-4
                of 500 pixels is 0.05 pixels per step; None: they are fixed.
            refine_lenses: learning rate of the coefficients of lenses and windshields of sensors, see docs/training.md.
                A lens has the coefficients that it was made with: `radial=(0, 0)` are two. None: they are fixed.
            calibrations: for each camera a number; cameras with the same number share intrinsics and lens, and may
                differ in image size; needs `refine_intrinsics` or `refine_lenses`. None: cameras with equal size,
                intrinsics and lens share them.
            refine_exposures: learning rate of an affine transform of the colours of each view; None: there is none.
            density: density control, which adds and removes Gaussians; None: there is none.
            extent: the radius of the region around the cameras, scene units, for default rates and density control;
                None: computed from the cameras' positions.
            betas: betas of Adam.
            epsilon: epsilon of Adam.
            visible_only: leave primitives that are not visible in a step, and their moments, unchanged.
            pool_bytes: device memory for the parameters and moments of the Gaussians near the views of a step, while
                all Gaussians are in a file of the worker's spool; see docs/training.md. 0: all are in device memory.
            sh_degree_every: begin with spherical harmonics of degree 0, and add a degree after every so many steps; 0:
                use all degrees at once.
            seed: the seed of all random numbers.
            snapshot_every: steps between snapshots in the worker's spool, the first before the first step; if there is
                none, a warning says so. 0: only those of `Trainer.snapshot`, and one when the worker is stopped.
            timeout_s: time-out of each reply, seconds; None: the client's.
            fields: fields of the settings by name, as for `render`.

        Raises:
            TrainingHeld: another client is training the scene.

        Example:
            with client.trainer(scene, cameras, photographs, total_steps=100, refine_poses=1e-4) as trainer:
                for step in trainer.steps(100):
                    print(step.number, step.psnr)
                fitted = trainer.scene()
        """
        method, facts = f"{TRAINING_SERVICE}/Train", partial(scene_facts, scene)
        with self._workers.begin(timeout_s, method, facts, self._cancellation) as call:
            instance("scene", scene, (Spheres, Gaussians, SceneHandle), "pass spheres, Gaussians, or a handle of them")
            check_is_sent("scene", scene)
            _check_kinds(cameras, loss, density, rates)
            refined = _refined(
                **{"poses": refine_poses, "end_poses": refine_end_poses, "exposures": refine_exposures},
                **{"intrinsics": refine_intrinsics, "lenses": refine_lenses},
            )
            _check_uses(calibrations, {**(rates or {}), **refined}, loss, target_images)
            warn_of_large_rates(rates or {}, "rates[{!r}]")
            warn_of_large_rates(refined, "refine_{}")
            steps = whole_number("total_steps", total_steps, 1, _MOST)
            views = Views(cameras, target_images, calibrations)
            handle = scene if isinstance(scene, SceneHandle) else self._workers.put(scene, call)
            spec = training_pb2.TrainingSpec(
                sh_degree_every=whole_number("sh_degree_every", sh_degree_every, 0, _MOST),
                seed=whole_number("seed", seed, 0, (1 << 64) - 1),
                snapshot_every=whole_number("snapshot_every", snapshot_every, 0, _MOST),
                pool_bytes=whole_number("pool_bytes", pool_bytes, 0, _MOST),
                # Ids are hashes of content, and another program may have put the same content.
                keeps_shared_scene=not isinstance(scene, SceneHandle),
            )
            _set_rendering(spec, handle if handle.scene is None else scene, views, settings, fields)
            radius = extent_of(views.cameras) if extent is None else number("extent", extent)
            if not 0 < radius < math.inf:
                raise InvalidArgument.of("extent", f"expected a radius above 0, scene units, got {radius:g}")
            copy = handle.scene
            tensors = tuple(copy.tensors) if isinstance(copy, Spheres | Gaussians) else _GUESSED_TENSORS
            chosen = dict(default_rates(handle.kind, tensors, radius, steps) if rates is None else rates)
            chosen |= refined
            optimizer = training_pb2.Optimizer(
                rates=rates_message(chosen),
                beta1=number("betas[0]", betas[0]),
                beta2=number("betas[1]", betas[1]),
                epsilon=number("epsilon", epsilon),
                visible_only=visible_only,
            )
            spec.optimizer.CopyFrom(optimizer)
            if views.has_target_images:
                spec.loss.CopyFrom((loss or Loss()).message())
            if density is not None:
                spec.density.CopyFrom(density.message(radius))
                warn_of_room(density, handle.count)
            try:
                return self._begun(handle, views, spec, call)
            except InvalidArgument as error:
                others = default_rates(handle.kind, (), radius, steps)
                guessed = default_rates(handle.kind, tensors, radius, steps).keys() - others.keys()
                if rates is not None or tensors != _GUESSED_TENSORS or not _lacks(error, guessed):
                    raise
            # The scene has the other tensors that a scene of its kind may have.
            for name in guessed:
                spec.optimizer.rates.pop(name)
            for name, rate in rates_message(others).items():
                spec.optimizer.rates[name].CopyFrom(rate)
            return self._begun(handle, views, spec, call)

    def resume_trainer(
        self,
        training_id: str,
        lease: str,
        *,
        target_images: Sequence[Any] | None = None,
        timeout_s: float | None = None,
    ) -> Trainer:
        """Resumes a training after `close(finish=False)`, an error, or the loss of its client.

        A client that still uses the training gets `TrainingHeld`.

        Args:
            training_id: its `Trainer.training_id`.
            lease: its `Trainer.lease`.
            target_images: the target images of the views, as for `trainer`, for a worker that has lost them; None: they
                are downloaded from the worker if the training has snapshots, which continue at their interval.
            timeout_s: time-out of each reply, seconds; None: the client's.

        Raises:
            TrainingLost: the training has ended or expired, or the lease is wrong.

        Example:
            trainer = client.resume_trainer(training_id, lease)
        """
        with self._workers.begin(timeout_s, f"{TRAINING_SERVICE}/Train", None, self._cancellation) as call:
            instance("training_id", training_id, (str,), "pass `Trainer.training_id`")
            instance("lease", lease, (str,), "pass `Trainer.lease`")
            start = training_pb2.TrainingStart(training_id=training_id, lease=lease)
            known = None if target_images is None else TargetImages(target_images)
            error: LumigradError | None = None
            for worker in self._workers.present():
                try:
                    return self._resumed(worker, start, known, call.renewed(call.timeout_s))
                except (Unavailable, TrainingLost) as failed:
                    error = failed if error is None or isinstance(error, TrainingLost) else error
            assert error is not None
            try:
                raise error
            finally:
                # The error's traceback refers to this frame, and would keep the target images in a cycle.
                del error

    def _resumed(
        self, worker: Worker, start: training_pb2.TrainingStart, target_images: TargetImages | None, call: Call
    ) -> Trainer:
        def put_target_images(call: Call) -> None:
            if target_images is not None:
                target_images.put(worker.store, call)

        stream = self._stream(worker, call, put_target_images)
        try:
            stream.start(start, call)
        except SceneNotFound:
            # The worker has the snapshot, but not the target images of its views.
            if target_images is None:
                raise
            stream.put_again()
            stream.start(start, call.renewed(call.timeout_s))
        started = stream.started
        trainer = Trainer(stream, worker.store, started.has_loss, int(started.snapshot_every))
        has_snapshots = started.snapshot_every > 0 or started.HasField("snapshot_step")
        if target_images is None and started.has_loss and has_snapshots:
            try:
                hashes = [view.target for view in trainer.views()[0]]
                target_images = stream.repeated(partial(TargetImages.downloaded, hashes, worker.store))
            except BaseException:
                trainer.close(finish=False)
                raise
        return trainer

    def _begun(self, handle: SceneHandle, views: Views, spec: training_pb2.TrainingSpec, call: Call) -> Trainer:
        start_id = secrets.token_hex(_START_ID_BYTES)
        attempts = RoutedAttempts(self._workers, handle, call.to(handle.affinity_key))
        while True:
            with attempts as worker:
                # The training stays on this worker from here on.
                put_target_images = partial(views.put, worker.store)
                stream = self._stream(worker, attempts.call, put_target_images)
                put_target_images(attempts.call.renewed(call.timeout_s))
                start = training_pb2.TrainingStart(
                    scene=attempts.reference, spec=spec, views=views.messages(), start_id=start_id
                )
                stream.start(start, attempts.call.renewed(call.timeout_s))
                sizes = [(camera.width, camera.height) for camera in views.cameras]
                trainer = Trainer(stream, worker.store, views.has_target_images, spec.snapshot_every, sizes)
                if spec.snapshot_every and not stream.started.HasField("snapshot_step"):
                    _warn_of_no_snapshots(trainer)
                return trainer

    def _stream(self, worker: Worker, call: Call, restore: Restore) -> TrainingStream:
        stream = TrainingStream(worker.connection, call.affinity, call.timeout_s, self._workers.retry_s, restore)
        stream.cancellation = call.cancellation
        return stream


def _warn_of_no_snapshots(trainer: Trainer) -> None:
    """Warns that a worker writes no snapshots of a training; ends the training if the program raises warnings."""
    try:
        text = "the worker writes no snapshots of this training: it has no spool (--spool), or no room in it"
        warn_caller(f"snapshot_every: {text}; the training is lost if the worker dies")
    except Warning:
        trainer.close()
        raise


def _check_kinds(cameras: Any, loss: Any, density: Any, rates: Any) -> None:
    """Raises InvalidArgument for arguments of other kinds, whose attributes would be missing later."""
    if isinstance(cameras, Camera):
        raise InvalidArgument.of("cameras", "expected a list with a camera for each view, got one camera")
    instance("loss", loss, (Loss, NoneType), "pass a Loss")
    instance("rates", rates, (Mapping, NoneType), "pass rates by parameter, such as {'means': 1e-4}")
    instance("density", density, (AdaptiveDensity, Mcmc, NoneType), "pass AdaptiveDensity() or Mcmc()")


def _check_uses(calibrations: Any, rates: Rates, loss: Loss | None, target_images: Any) -> None:
    """Raises InvalidArgument for arguments that would change nothing."""
    if calibrations is not None and not {"intrinsics", "lenses"}.intersection(rates):
        text = "expected refine_intrinsics or refine_lenses with it, since cameras share only what is refined"
        raise InvalidArgument.of("calibrations", f"{text}; pass one of them, or leave it out")
    if loss is not None and target_images is None:
        text = "expected target_images with it, since without them the client computes the loss"
        raise InvalidArgument.of("loss", f"{text} of `Trainer.batches`; pass them, or leave it out")


def _refined(**rates: Rate | float | None) -> dict[str, Rate | float]:
    """Returns the rates of cameras and exposures that are refined."""
    refined = {
        name: rate if isinstance(rate, Rate) else number(f"refine_{name}", rate)
        for name, rate in rates.items()
        if rate is not None
    }
    for name, rate in refined.items():
        if not isinstance(rate, Rate) and not 0 <= rate < math.inf:
            raise InvalidArgument.of(f"refine_{name}", f"expected a finite rate >= 0, got {rate}")
    return refined


def _set_rendering(
    spec: training_pb2.TrainingSpec,
    scene: Spheres | Gaussians | SceneHandle,
    views: Views,
    settings: SphereSettings | GaussianSettings | None,
    fields: Mapping[str, Any],
) -> None:
    chosen = settings_kind(scene).from_fields(settings, fields)
    chosen = RenderRequest(scene, tuple(views.cameras), False, chosen, ("color",)).settings
    if isinstance(chosen, SphereSettings):
        spec.spheres.CopyFrom(sphere_settings_message(chosen))
        return
    if chosen.transforms:
        raise InvalidArgument.of("transforms", "expected none in a training, whose Gaussians move by themselves")
    spec.gaussians.CopyFrom(gaussian_settings_message(chosen))


def _lacks(error: InvalidArgument, names: Iterable[str]) -> bool:
    """Returns whether a worker has refused a rate because the scene has no parameter of one of the names."""
    ends = tuple(f", got {name}" for name in names)
    return any(each.field == "rates" and each.description.endswith(ends) for each in error.violations)
