"""Camera parameters that a training refines: poses of each view, intrinsics and lenses of each calibration."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lumigrad.kernels import resident, training
from lumigrad.server.core.limits import require
from lumigrad.server.engines.content import Tensors
from lumigrad.server.training import lenses
from lumigrad.server.training.parameters import Optimizer, Refinement
from lumigrad.server.training.spec import END_POSES, INTRINSICS, LENSES, OF_CAMERAS, POSES, TrainingPlan
from lumigrad.server.training.views import Views
from lumigrad.v1 import camera_pb2, gaussians_pb2, training_pb2

_POSE_WIDTH = 6
# Bytes on the device of a view's poses and of its camera's own intrinsics.
_PLACED_BYTES = (12 + 12 + 4) * 8
_WANTED = {POSES: "cameras", END_POSES: "cameras", INTRINSICS: "cameras", LENSES: "lenses"}
_SHARED = (INTRINSICS, LENSES)


@dataclass(eq=False)
class _Placed:
    """Parameters on the device, where steps without Python change them.

    Attributes:
        by_name: Adam's state of each parameter.
        poses: f64 [V, 12], see `resident.Poses`.
        ends: f64 [V, 12], the poses at the end of the exposure; those at the start if there are no others.
        films: f64 [V, 4], see `resident.Intrinsics`.
        steps: i64 [K], the number of steps of each calibration.
        is_ahead: Whether they are newer than the parameters on the host.
    """

    by_name: dict[str, Refinement]
    poses: torch.Tensor
    ends: torch.Tensor
    films: torch.Tensor
    steps: torch.Tensor
    is_ahead: bool = False

    @staticmethod
    def of(by_name: Mapping[str, Refinement], views: Views, device: torch.device) -> _Placed:
        """Copy the parameters to the device."""
        ends = [_ends(view.camera) for view in views.messages]
        poses = [[[*pose.rotation, *pose.translation] for pose in (each[0], each[-1])] for each in ends]
        cameras = [view.camera.opencv for view in views.messages]
        films = [[camera.fx, camera.fy, camera.cx, camera.cy] for camera in cameras]
        steps = by_name[INTRINSICS].tensors["steps"] if INTRINSICS in by_name else torch.zeros(0, dtype=torch.int64)
        start, end = torch.tensor(poses, dtype=torch.float64).to(device).unbind(1)
        return _Placed(
            {name: refinement.copied(device) for name, refinement in by_name.items()},
            start.contiguous(),
            end.contiguous(),
            torch.tensor(films, dtype=torch.float64).to(device),
            steps.to(device, copy=True),
        )

    def copied(self) -> _Placed:
        """Return a copy of what steps change."""
        by_name = {name: refinement.copied() for name, refinement in self.by_name.items()}
        return _Placed(by_name, self.poses.clone(), self.ends.clone(), self.films, self.steps.clone(), self.is_ahead)

    def settled(self, name: str) -> Refinement:
        """Return a parameter on the host."""
        refinement = self.by_name[name].copied(torch.device("cpu"))
        if name == INTRINSICS:
            refinement.restore({**refinement.tensors, "steps": self.steps})
        return refinement


class CameraRefinement:
    """Adam's state of the refined camera parameters, with a row for each view or calibration; on the host.

    Steps without Python refine on the device; `settle` copies the results to the host.
    """

    def __init__(self, views: Views, rates: Collection[str]) -> None:
        self._calibrations = views.calibrations
        # None if the host has the newer parameters.
        self._placed: _Placed | None = None
        self._by_name = {
            name: Refinement(torch.zeros(rows, width)) for name, (rows, width) in _shapes(views, rates).items()
        }
        self._models = {view.camera.WhichOneof("model") for view in views.messages}

    @staticmethod
    def bytes(views: Views, rates: Collection[str]) -> int:
        """Return the memory that refinement takes."""
        shapes = _shapes(views, rates)
        refined = sum(rows * Refinement.row_bytes(width) for rows, width in shapes.values())
        return 2 * refined + len(views) * _PLACED_BYTES if shapes and LENSES not in shapes else refined

    @property
    def is_ahead(self) -> bool:
        """Whether parameters on the device are newer than those on the host."""
        return self._placed is not None and self._placed.is_ahead

    def is_resident(self, *, makes_sensors: bool) -> bool:
        """Return whether steps without Python can do this refinement; `makes_sensors`: OpenCV's cameras are sensors."""
        are_sensors = makes_sensors or self._models == {"sensor"}
        known = {POSES, END_POSES} if are_sensors else {POSES, INTRINSICS}
        return not self._by_name or (self._by_name.keys() <= known and len(self._models) == 1)

    def bound(self, views: Views, optimizer: Optimizer, device: torch.device, *, are_sensors: bool) -> dict[str, Any]:
        """Return the poses and intrinsics that steps without Python change in place; None for what is not refined."""
        poses: resident.Poses | None = None
        intrinsics: resident.Intrinsics | None = None
        if self._by_name and self._placed is None:
            self._placed = _Placed.of(self._by_name, views, device)
        placed, rates = self._placed, optimizer.rates
        if placed is not None and (POSES in self._by_name or END_POSES in self._by_name):
            start, end = (
                resident.Motions(rate=rates[name].numbers, **placed.by_name[name].tensors)
                if name in self._by_name
                else None
                for name in (POSES, END_POSES)
            )
            ends = placed.ends if are_sensors else None
            poses = resident.Poses(poses=placed.poses, ends=ends, start=start, end=end)
        if placed is not None and INTRINSICS in self._by_name:
            tensors = {**placed.by_name[INTRINSICS].tensors, "steps": placed.steps}
            numbers = self._calibrations
            intrinsics = resident.Intrinsics(
                films=placed.films, calibrations=numbers, rate=rates[INTRINSICS].numbers, **tensors
            )
        return {"poses": poses, "intrinsics": intrinsics}

    def note_steps(self) -> None:
        """Note that steps without Python have changed the parameters on the device."""
        if self._placed is not None:
            self._placed.is_ahead = True

    def copied(self) -> CameraRefinement:
        """Return a copy for steps without Python, with parameters of its own."""
        after, placed = copy.copy(self), self._placed
        after._by_name = dict(self._by_name)
        if placed is not None:
            after._placed = placed.copied()
        return after

    def settle(self, views: Views) -> None:
        """Copy parameters to the host if those on the device are newer, on the device's thread, which waits."""
        placed = self._placed
        if placed is None or not placed.is_ahead:
            return
        settled = {name: placed.settled(name) for name in self._by_name}
        moved = {
            number
            for name in (POSES, END_POSES)
            if name in settled
            for number in settled[name].changed(self._by_name[name])
        }
        poses = placed.poses.tolist(), placed.ends.tolist()
        for number in sorted(moved):
            view = copy.deepcopy(views.messages[number])
            for pose, of_views in zip(_ends(view.camera), poses, strict=False):
                pose.rotation[:], pose.translation[:] = of_views[number][:9], of_views[number][9:]
            views.messages[number] = view
        self._by_name = settled
        placed.is_ahead = False

    @property
    def wanted(self) -> list[str]:
        """The engine's names of the gradients that refinement needs."""
        return list(dict.fromkeys(_WANTED[name] for name in self._by_name))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return all tensors, by name."""
        return {
            f"{name}.{part}": tensor
            for name, refinement in self._by_name.items()
            for part, tensor in refinement.tensors.items()
        }

    def restore(self, parts: Mapping[str, Mapping[str, torch.Tensor]]) -> None:
        """Restore the tensors that `tensors` returned, by parameter and part."""
        for name, refinement in self._by_name.items():
            refinement.restore({part: tensor.cpu() for part, tensor in parts[name].items()})

    def camera(self, views: Views, number: int) -> camera_pb2.Camera:
        """Return the current camera of a view, or one of its kind if the device has newer parameters."""
        camera = views.messages[number].camera
        if self.is_ahead or not any(name in self._by_name for name in _SHARED):
            return camera
        return lenses.refined(camera, *(self._offsets(name, number) for name in _SHARED))

    def stepped(
        self, numbers: Sequence[int], gradients: Tensors, views: Views, optimizer: Optimizer, at: int
    ) -> tuple[CameraRefinement, dict[int, training_pb2.TrainingView]]:
        """Return a copy after a step of Adam for some views, and the views whose poses it moved.

        `gradients` are the engine's, with a row for each view.
        """
        after = copy.copy(self)
        after._by_name, after._placed = dict(self._by_name), None
        for name, refinement in self._by_name.items():
            rows = list(numbers) if name not in _SHARED else [self._calibrations[number] for number in numbers]
            gradient = self._gradient(name, numbers, gradients, views)
            rate = optimizer.rates[name].at(at)
            after._by_name[name] = refinement.stepped(*_summed(rows, gradient), rate, optimizer)
        for number in numbers if any(name in self._by_name for name in _SHARED) else ():
            if not lenses.is_valid(after.camera(views, number)):
                after._take_back(self, self._calibrations[number])
        return after, after._moved(numbers, views)

    def _offsets(self, name: str, number: int) -> list[float]:
        refinement = self._by_name.get(name)
        return [] if refinement is None else refinement.values[self._calibrations[number]].tolist()

    def _gradient(self, name: str, numbers: Sequence[int], gradients: Tensors, views: Views) -> torch.Tensor:
        """Return the [C, K] gradient of a parameter, with a row for each view."""
        if name == END_POSES:
            return gradients["camera_pose_end"].float()
        cameras = [views.messages[number].camera for number in numbers]
        if name == POSES:
            start = _pose_gradients(gradients, cameras)
            moves_both = END_POSES not in self._by_name and "camera_pose_end" in gradients
            return start + gradients["camera_pose_end"].float() if moves_both else start
        width = self._by_name[name].values.shape[1]
        rows: list[np.ndarray] = []
        for row, (number, camera) in enumerate(zip(numbers, cameras, strict=True)):
            if name == LENSES:
                rows.append(lenses.lens_gradient(camera, gradients, row, width))
            else:
                pixels = gradients["camera_intrinsics"][row].double().numpy()
                rows.append(lenses.intrinsics_gradient(camera, self._offsets(name, number), pixels))
        return torch.from_numpy(np.stack(rows)).float()

    def _take_back(self, before: CameraRefinement, calibration: int) -> None:
        """Undo the step of a calibration."""
        for name in _SHARED:
            if name in self._by_name:
                self._by_name[name].copy_row(before._by_name[name], calibration)

    def _moved(self, numbers: Sequence[int], views: Views) -> dict[int, training_pb2.TrainingView]:
        """Apply the motions of poses to their views, and reset them to zero; returns the changed views."""
        start, end = self._by_name.get(POSES), self._by_name.get(END_POSES)
        if start is None and end is None:
            return {}
        found = {}
        for number in numbers:
            at_start = None if start is None else start.clear(number)
            at_end = at_start if end is None else end.clear(number)
            found[number] = _with_motion(views.messages[number], at_start, at_end)
        return found


def check_cameras(views: Views, plan: TrainingPlan, field: str) -> None:
    """Raise an InvalidArgumentError for a camera that lacks what a training refines."""
    rates = [name for name in OF_CAMERAS if name in plan.optimizer.rates]
    for index, view in enumerate(views.messages if rates else ()):
        model, where = view.camera.WhichOneof("model"), f"{field}[{index}].camera"
        models = ("sensor",) if END_POSES in rates or LENSES in rates else ("opencv", "sensor")
        limit = f"{' or '.join(models)}, for {', '.join(rates)} are refined"
        require(model in models, where, limit, model)
        has_end = END_POSES not in rates or view.camera.sensor.HasField("end")
        require(has_end, f"{where}.sensor.end", "a pose, for end_poses are refined", "none")
        if LENSES in rates:
            _check_lens(view.camera, where)
    if any(name in rates for name in _SHARED):
        _check_calibrations(views, field)
    _check_semantics(views, plan, rates)


def _check_lens(camera: camera_pb2.Camera, field: str) -> None:
    limit = "a lens with coefficients, for lenses are refined; zeros are some"
    require(lenses.lens_width(camera) > 0, f"{field}.sensor", limit, "none")
    back = camera.sensor.windshield.horizontal_inverse or camera.sensor.windshield.vertical_inverse
    limit = "no way back, for lenses are refined: it would not follow"
    require(not back, f"{field}.sensor.windshield.horizontal_inverse", limit, "coefficients")


def _check_calibrations(views: Views, field: str) -> None:
    first: dict[int, int] = {}
    for index, calibration in enumerate(views.calibrations):
        same = first.setdefault(calibration, index)
        cameras = views.messages[index].camera, views.messages[same].camera
        is_alike = lenses.layout(cameras[0]) == lenses.layout(cameras[1])
        limit = f"a lens like that of view {same}, whose calibration it shares"
        require(is_alike, f"{field}[{index}].camera", limit, "another kind or number of coefficients")


def _check_semantics(views: Views, plan: TrainingPlan, rates: Sequence[str]) -> None:
    """Refuse GAUSSIAN_SEMANTICS_GSPLAT if sensors or intrinsics are refined, which needs true derivatives."""
    if plan.kind != "gaussians" or plan.settings.semantics != gaussians_pb2.GAUSSIAN_SEMANTICS_GSPLAT:
        return
    are_sensors = any(view.camera.HasField("sensor") for view in views.messages)
    needing = [name for name in rates if name != POSES or are_sensors]
    limit = f"GAUSSIAN_SEMANTICS_EXACT, for {', '.join(needing)} are refined"
    require(not needing, "start.spec.gaussians.semantics", limit, "GAUSSIAN_SEMANTICS_GSPLAT")


def _ends(camera: camera_pb2.Camera) -> list[Any]:
    """Return the poses of a camera, one, or two if it moves during the exposure."""
    if camera.HasField("opencv"):
        return [camera.opencv]
    sensor = camera.sensor
    return [sensor.start, sensor.end] if sensor.HasField("end") else [sensor.start]


def _shapes(views: Views, rates: Collection[str]) -> dict[str, tuple[int, int]]:
    """Return the numbers of rows and columns of each parameter that has a rate."""
    calibrations = len(set(views.calibrations))
    known = {POSES: (len(views), _POSE_WIDTH), END_POSES: (len(views), _POSE_WIDTH)}
    known[INTRINSICS] = calibrations, lenses.INTRINSICS_WIDTH
    if LENSES in rates:
        known[LENSES] = calibrations, max(lenses.lens_width(view.camera) for view in views.messages)
    return {name: known[name] for name in OF_CAMERAS if name in rates}


def _summed(rows: Sequence[int], gradient: torch.Tensor) -> tuple[list[int], torch.Tensor]:
    """Return the distinct rows, and the sum of the gradients of each."""
    different = list(dict.fromkeys(rows))
    if len(different) == len(rows):
        return different, gradient
    places = torch.tensor([different.index(row) for row in rows])
    return different, torch.zeros(len(different), gradient.shape[1]).index_add_(0, places, gradient)


def _pose_gradients(gradients: Tensors, cameras: Sequence[camera_pb2.Camera]) -> torch.Tensor:
    """Return gradients [C, 6] of xi = (translation, rotation).

    exp(xi) multiplies world-to-camera matrices from the left.

    The gradient of the translation is g_t, that of t; the gradient of the rotation is t x g_t plus the sum of r x g_r
    over the columns r of R.
    """
    if "camera_pose" in gradients:
        return gradients["camera_pose"].float()
    of_rotation, of_translation = gradients["camera_rotation"].double(), gradients["camera_translation"].double()
    rotation = torch.tensor([list(c.opencv.rotation) for c in cameras], dtype=torch.float64)
    translation = torch.tensor([list(c.opencv.translation) for c in cameras], dtype=torch.float64)
    columns = rotation.reshape(-1, 3, 3)
    turning = torch.linalg.cross(columns, of_rotation, dim=1).sum(dim=2)
    turning = turning + torch.linalg.cross(translation, of_translation)
    return torch.cat([of_translation, turning], dim=1).float()


def _with_motion(
    message: training_pb2.TrainingView, start: torch.Tensor | None, end: torch.Tensor | None
) -> training_pb2.TrainingView:
    """Return a view with its world-to-camera matrices at the start and the end multiplied from the left by exp(xi)."""
    view = copy.deepcopy(message)
    for pose, xi in zip(_ends(view.camera), (start, end), strict=False):
        if xi is None:
            continue
        matrix = torch.eye(4, dtype=torch.float64)
        matrix[:3, :3] = torch.tensor(pose.rotation, dtype=torch.float64).reshape(3, 3)
        matrix[:3, 3] = torch.tensor(pose.translation, dtype=torch.float64)
        moved = training.apply_pose_update(matrix[None], xi.double()[None])[0]
        pose.rotation[:] = moved[:3, :3].flatten().tolist()
        pose.translation[:] = moved[:3, 3].tolist()
    return view
