"""Runs a case on an engine: converts it to arguments of `lumigrad.kernels.gaussians`, and results to arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, Transform
from support.backends.gaussian_engines import Engine
from support.gaussians.case import GaussianCase, InriaView, OpenCVView
from support.gaussians.reference_runs import IMAGES

# All outputs: the images, then those per Gaussian.
OUTPUTS = (*IMAGES, "contributors", "ids", "radii", "means2d", "depths", "conics", "projected_opacities")


@dataclass(frozen=True)
class Run:
    """The results, as arrays."""

    outputs: dict[str, NDArray[np.generic]]
    gradients: dict[str, NDArray[np.float32]]
    touched: NDArray[np.int32] | None


def camera_of(view: OpenCVView | InriaView, width: int, height: int) -> Camera:
    """A case's camera."""
    if isinstance(view, InriaView):
        arrays = (view.view, view.projection, view.position)
        return Camera.inria(*arrays, view.tan_fov_x, view.tan_fov_y, width, height)
    return Camera.opencv(
        *view.intrinsics.tolist(), view.rotation, view.translation, width, height, model=view.model,
        distortion=view.distortion,
    )  # fmt: skip


def scene_of(case: GaussianCase) -> Gaussians:
    """A case's tensors."""
    return Gaussians(**{name: torch.from_numpy(np.asarray(value, np.float32)) for name, value in case.tensors.items()})


def cameras_of(case: GaussianCase) -> list[Camera]:
    """A case's cameras."""
    return [camera_of(view, case.width, case.height) for view in case.cameras]


def wanted_of(case: GaussianCase) -> tuple[str, ...]:
    """All gradients that exist for the case."""
    transforms = ("transforms",) if case.slices else ()
    return (*case.tensors, "background", "cameras", *transforms, "means2d", "means2d_abs")


def run(
    engine: Engine,
    case: GaussianCase,
    *,
    outputs: Sequence[str] = ("color",),
    upstream: Mapping[str, ArrayLike] | None = None,
    wanted: Sequence[str] | None = None,
    **changes: object,
) -> Run:
    """Runs forward, and backward if `upstream` is given, for the gradients `wanted`; None: all."""
    results, state = engine.forward(
        scene_of(case),
        cameras_of(case),
        Settings(**{**asdict(case.options), **changes}),  # type: ignore[arg-type]
        background=None if case.background is None else torch.from_numpy(np.asarray(case.background, np.float32)),
        transforms=[Transform(piece.begin, piece.end, piece.matrix) for piece in case.slices],
        outputs=outputs,
        retain=upstream is not None,
    )
    arrays = {name: value.numpy() for name, value in results.items()}
    if upstream is None:
        return Run(arrays, {}, None)
    tensors = {name: torch.from_numpy(np.array(value, np.float32)) for name, value in upstream.items()}
    gradients, touched = engine.backward(state, tensors, wanted_of(case) if wanted is None else wanted)
    return Run(arrays, {name: value.numpy() for name, value in gradients.items()}, touched.numpy())
