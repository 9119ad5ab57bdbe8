"""Runs a case with the float64 reference; autograd computes the gradients, by the names of the protocol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from support.gaussians.case import Doubles, GaussianCase, InriaView, OpenCVView
from support.gaussians.projection import Camera
from support.gaussians.reference import Frame, Part, render

IMAGES = ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth")
OPENCV = ("camera_rotation", "camera_translation", "camera_intrinsics")
INRIA = ("camera_view", "camera_projection", "camera_position")


def leaf(values: ArrayLike) -> Tensor:
    """A float64 tensor that collects a gradient."""
    return torch.tensor(np.asarray(values, np.float64), requires_grad=True)


@dataclass(frozen=True)
class Reference:
    """Frames per camera, and gradients by name."""

    frames: list[Frame]
    gradients: dict[str, Doubles]

    def stacked(self, name: str) -> Doubles:
        """Stacks one field of all frames along a new first axis."""
        return np.stack([getattr(frame, name).detach().numpy() for frame in self.frames])

    def masked(self, upstream: Mapping[str, ArrayLike]) -> dict[str, Doubles]:
        """Output gradients [C, H, W, ..] with zeros at pixels where a branch has no margin."""
        stable = self.stacked("stable")
        images = {name: np.asarray(values, np.float64) for name, values in upstream.items()}
        return {name: np.where(stable.reshape(*stable.shape, *[1] * (v.ndim - 3)), v, 0) for name, v in images.items()}


def pose_gradient(rotation: Doubles, translation: Doubles, d_rotation: Doubles, d_translation: Doubles) -> Doubles:
    """The derivative along exp(xi) V at xi = 0, in the order rho, phi (spec section 3.8): [6]."""
    generators = np.cross(np.eye(3)[:, None, :], np.eye(3)[None, :, :]).transpose(0, 2, 1)
    turns = [(d_rotation * (g @ rotation)).sum() + (d_translation * (g @ translation)).sum() for g in generators]
    return np.concatenate([d_translation, turns])


class ReferenceScene:
    """The inputs of a case in float64, ready to be rendered and differentiated."""

    def __init__(self, case: GaussianCase) -> None:
        self.case = case
        self.inputs = {name: leaf(value) for name, value in case.tensors.items()}
        self.cameras = [self._leaves(view) for view in case.cameras]
        self.slices = [leaf(piece.matrix) for piece in case.slices]
        given = case.background if case.background is not None else np.zeros(case.channels)
        self.background = leaf(given)
        self.frames = [self._frame(index) for index in range(len(case.cameras))]

    @staticmethod
    def _leaves(view: OpenCVView | InriaView) -> dict[str, Tensor]:
        if isinstance(view, OpenCVView):
            names, values = OPENCV, (view.rotation, view.translation, view.intrinsics)
        else:
            names, values = INRIA, (view.view, view.projection, view.position)
        return {name: leaf(value) for name, value in zip(names, values, strict=True)}

    def _camera(self, index: int) -> Camera:
        view, leaves = self.case.cameras[index], self.cameras[index]
        width, height = self.case.width, self.case.height
        if isinstance(view, OpenCVView):
            rotation, translation, intrinsics = (leaves[name] for name in OPENCV)
            eye = -rotation.T @ translation
            return Camera(rotation, translation, intrinsics, view.model, view.distortion, width, height, eye)
        focal = (width / (2 * view.tan_fov_x), height / (2 * view.tan_fov_y))
        intrinsics = torch.tensor([*focal, width / 2, height / 2], dtype=torch.float64)
        matrix, projection, position = (leaves[name] for name in INRIA)
        rotation, translation = matrix[:3, :3].T, matrix[3, :3]
        return Camera(
            rotation, translation, intrinsics, "pinhole", (), width, height, position, projection=projection.T
        )

    def _frame(self, index: int) -> Frame:
        scene, camera = self._scene(index), self._camera(index)
        background = self.background if self.background.ndim == 1 else self.background[index]
        parts, at = [], 0
        for piece, matrix in zip(self.case.slices, self.slices, strict=True):
            parts.append(self._part(scene, camera, at, piece.begin))
            turn, shift = matrix[:3, :3], matrix[:3, 3]
            moved = Camera(
                camera.rotation @ turn, camera.rotation @ shift + camera.translation, camera.intrinsics, camera.model,
                camera.distortion, camera.width, camera.height, turn.T @ (camera.eye - shift),
            )  # fmt: skip
            parts.append(self._part(scene, moved, piece.begin, piece.end))
            at = piece.end
        parts.append(self._part(scene, camera, at, self.case.count))
        return render(parts, background, self.case.options)

    def _scene(self, index: int) -> dict[str, Tensor]:
        scenes, count = self.case.scenes, len(self.cameras)
        values = dict(self.inputs)
        if scenes is not None:
            values = {name: value[index * scenes // count] for name, value in values.items()}
        colors = values.get("colors")
        if colors is not None and colors.ndim == 3:
            values["colors"] = colors[index if scenes is None else index % (count // scenes)]
        return values

    @staticmethod
    def _part(scene: dict[str, Tensor], camera: Camera, begin: int, end: int) -> Part:
        return Part(camera, **{name: value[begin:end] for name, value in scene.items()})

    def forward(self) -> Reference:
        """The frames, without gradients."""
        return Reference(self.frames, {})

    def reference(self, upstream: Mapping[str, ArrayLike], d_means2d: ArrayLike | None = None) -> Reference:
        """The frames, and the gradients given those of outputs [C, ...] and, optionally, of means2d [C, N, 2]."""
        loss = torch.zeros((), dtype=torch.float64)
        for name, values in upstream.items():
            weights = torch.from_numpy(np.asarray(values, np.float64))
            loss = loss + (torch.stack([getattr(frame, name) for frame in self.frames]) * weights).sum()
        if d_means2d is not None:
            weights = torch.from_numpy(np.asarray(d_means2d, np.float64))
            loss = loss + (torch.stack([frame.means2d for frame in self.frames]) * weights).sum()
        named = {"background": self.background, **self.inputs}
        flat = [*named.values(), *self.slices, *[t for camera in self.cameras for t in camera.values()]]
        flat += [frame.offsets for frame in self.frames]
        if not loss.requires_grad:
            loss = loss + 0 * self.background.sum()
        found = iter(torch.autograd.grad(loss, flat, retain_graph=True, allow_unused=True, materialize_grads=True))
        gradients = {name: next(found).numpy() for name in named}
        if self.slices:
            gradients["transforms"] = np.stack([next(found).numpy() for _ in self.slices])
        gradients |= self._camera_gradients([{name: next(found).numpy() for name in camera} for camera in self.cameras])
        gradients |= self._film_gradients([next(found).numpy() for _ in self.frames])
        return Reference(self.frames, gradients)

    def _camera_gradients(self, found: list[dict[str, Doubles]]) -> dict[str, Doubles]:
        gradients = {name: np.stack([each[name] for each in found]) for name in found[0]}
        if OPENCV[0] in gradients:
            views = [view for view in self.case.cameras if isinstance(view, OpenCVView)]
            gradients["camera_pose"] = np.stack(
                [
                    pose_gradient(view.rotation, view.translation, each[OPENCV[0]], each[OPENCV[1]])
                    for view, each in zip(views, found, strict=True)
                ]
            )
        return gradients

    def _film_gradients(self, offsets: list[Doubles]) -> dict[str, Doubles]:
        """Sums over pixels of the means' gradients, and of their absolute values: [C, N, 2] px each."""
        sums = np.zeros((len(offsets), self.case.count, 2))
        absolute = np.zeros_like(sums)
        for index, (frame, each) in enumerate(zip(self.frames, offsets, strict=True)):
            order = frame.order.numpy()
            sums[index, order], absolute[index, order] = each.sum(0), np.abs(each).sum(0)
        return {"means2d": sums, "means2d_abs": absolute}
