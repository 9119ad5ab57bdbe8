"""Runs a case on an engine: converts it to arguments of `lumigrad.kernels.spheres`, and results to arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.kernels.spheres import Camera, Settings
from support.backends.engines import Engine
from support.spheres.case import Floats, SphereCase

Semantics = Literal["exact", "compat"]
SPHERE_INPUTS = ("positions", "colors", "radii")


@dataclass(frozen=True)
class Run:
    """The results, as arrays."""

    outputs: dict[str, NDArray[np.generic]]
    gradients: dict[str, Floats]
    touched: NDArray[np.int32] | None


def camera_of(case: SphereCase) -> Camera:
    """The case's camera."""
    return Camera.pulsar(
        case.camera.tolist(), case.width, case.height, orthogonal=case.orthogonal, right_handed=case.right_handed,
        first_r_then_t=case.first_r_then_t,
    )  # fmt: skip


def settings_of(case: SphereCase, semantics: Semantics, **changes: object) -> Settings:
    """The case's settings. In exact no pixel stops early unless `changes` enable it."""
    values: dict[str, object] = {
        "gamma": case.gamma,
        "max_depth": case.max_depth,
        "min_depth": case.min_depth,
        "semantics": semantics,
        "allowed_difference": case.allowed_difference if semantics == "compat" else 0.0,
        "max_hits": case.max_hits,
        "n_track": case.n_track,
        "background_depth": case.background_depth,
    }
    return Settings(**{**values, **changes})  # type: ignore[arg-type]


def wanted_of(case: SphereCase) -> tuple[str, ...]:
    """The gradients that exist in both semantics for the case."""
    return (*SPHERE_INPUTS, "cameras") if case.opacities is None else (*SPHERE_INPUTS, "opacities", "cameras")


def run(
    engine: Engine,
    case: SphereCase,
    semantics: Semantics,
    *,
    outputs: Sequence[str] = ("color",),
    wanted: Sequence[str] = (),
    output_gradients: Mapping[str, Floats] | None = None,
    cameras: Sequence[Camera] | None = None,
    **changes: object,
) -> Run:
    """Runs forward, and backward if gradients are wanted, for the case's output gradient unless others are given."""
    results, state = engine.forward(
        torch.from_numpy(case.positions), torch.from_numpy(case.colors), torch.from_numpy(case.radii),
        cameras or [camera_of(case)], settings_of(case, semantics, **changes),
        opacities=None if case.opacities is None else torch.from_numpy(case.opacities),
        background=torch.from_numpy(case.background), outputs=outputs, retain=bool(wanted),
    )  # fmt: skip
    arrays = {name: value.numpy() for name, value in results.items()}
    if not wanted:
        return Run(arrays, {}, None)
    upstream = output_gradients or {"color": case.output_gradient[None]}
    gradients, touched = engine.backward(
        state, {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in upstream.items()}, wanted
    )
    return Run(arrays, {name: value.numpy() for name, value in gradients.items()}, touched.numpy())
