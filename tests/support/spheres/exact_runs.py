"""Runs a case with the float64 reference; autograd computes the gradients, by the names of the protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from support.spheres.case import SphereCase
from support.spheres.exact_reference import Blending, Exact, render
from support.spheres.exact_views import OpenCV, View, opencv_view, pulsar_view

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class Pinhole:
    """An OpenCV camera in numbers: intrinsics are fx, fy, cx, cy."""

    intrinsics: Doubles
    rotation: Doubles
    translation: Doubles


@dataclass(frozen=True)
class Reference:
    """Frames per camera, and gradients by name."""

    frames: list[Exact]
    gradients: dict[str, Doubles]

    @property
    def wanted(self) -> tuple[str, ...]:
        """The gradients to request from an engine; the three of OpenCV cameras are requested as one."""
        return tuple(dict.fromkeys("cameras" if name.startswith("camera") else name for name in self.gradients))

    def stacked(self, name: str) -> Doubles:
        """Stacks one field of all frames along a new first axis."""
        return np.stack([getattr(frame, name).detach().numpy() for frame in self.frames])

    def calm(self, tolerance: float = 1e-5, depth: float = np.inf) -> NDArray[np.bool_]:
        """Pixels whose colour (and depth) rounding to float32 hardly changes: [C, H, W]."""
        masks = []
        for frame in self.frames:
            rounding = frame.rounding
            calm = ~rounding.undecided & (rounding.color < tolerance) & (rounding.alpha < 10 * tolerance)
            masks.append((calm & (rounding.depth < depth)).numpy())
        return np.stack(masks)


def leaf(values: ArrayLike) -> Tensor:
    """A float64 tensor that collects a gradient."""
    return torch.tensor(np.asarray(values, np.float64), requires_grad=True)


class ExactScene:
    """The inputs of a case in float64, ready to be rendered and differentiated."""

    def __init__(
        self, case: SphereCase, cameras: Sequence[ArrayLike | Pinhole] | None = None, **changes: float
    ) -> None:
        self.case = case
        self.inputs = {
            "positions": leaf(case.positions),
            "colors": leaf(case.colors),
            "radii": leaf(case.radii),
            "background": leaf(case.background),
            "gamma": leaf(case.gamma),
        }
        if case.opacities is not None:
            self.inputs["opacities"] = leaf(case.opacities)
        cameras = cameras if cameras is not None else [case.camera]
        self.cameras = [
            OpenCV(leaf(camera.rotation), leaf(camera.translation), leaf(camera.intrinsics))
            if isinstance(camera, Pinhole)
            else leaf(camera)
            for camera in cameras
        ]
        options: dict[str, float] = {"min_depth": case.min_depth, "max_hits": case.max_hits, **changes}
        blending = Blending(
            gamma=self.inputs["gamma"], background=self.inputs["background"], max_depth=case.max_depth,
            min_depth=options["min_depth"], background_depth=case.background_depth, max_hits=int(options["max_hits"]),
        )  # fmt: skip
        views = [self._view(camera) for camera in self.cameras]
        self.frames = render(views, self.inputs["colors"], self.inputs["radii"], blending, self.inputs.get("opacities"))

    def _view(self, camera: OpenCV | Tensor) -> View:
        case, positions = self.case, self.inputs["positions"]
        if isinstance(camera, OpenCV):
            return opencv_view(positions, camera, case.width, case.height)
        return pulsar_view(
            positions, camera, case.width, case.height, orthogonal=case.orthogonal, right_handed=case.right_handed,
            first_r_then_t=case.first_r_then_t,
        )  # fmt: skip

    def reference(self, output_gradients: Mapping[str, ArrayLike] | None = None) -> Reference:
        """The frames, and the gradients given those of outputs [C, ...], if there are any."""
        if not output_gradients:
            return Reference(self.frames, {})
        loss = torch.zeros((), dtype=torch.float64)
        for name, values in output_gradients.items():
            upstream = torch.from_numpy(np.asarray(values, np.float64))
            loss = loss + (torch.stack([getattr(frame, name) for frame in self.frames]) * upstream).sum()
        targets: dict[str, list[Tensor]] = {name: [value] for name, value in self.inputs.items()}
        opencv = [camera for camera in self.cameras if isinstance(camera, OpenCV)]
        if opencv:
            targets["camera_rotation"] = [camera.rotation for camera in opencv]
            targets["camera_translation"] = [camera.translation for camera in opencv]
            targets["camera_intrinsics"] = [camera.intrinsics for camera in opencv]
        else:
            targets["cameras"] = [camera for camera in self.cameras if isinstance(camera, Tensor)]
        flat = [value for values in targets.values() for value in values]
        found = iter(torch.autograd.grad(loss, flat, retain_graph=True, allow_unused=True, materialize_grads=True))
        gradients = {}
        for name, values in targets.items():
            parts = [next(found).numpy() for _ in values]
            gradients[name] = np.stack(parts) if name.startswith("camera") else parts[0]
        return Reference(self.frames, gradients)
