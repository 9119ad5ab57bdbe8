"""Small scenes for the stateful tests, and their images as the kernels render them in this process."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch

from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.engines.content import shapes_of
from lumigrad.server.engines.spheres import SPHERES
from lumigrad.v1 import render_pb2
from support.calls.raw_calls import Array, opencv_camera, spec_of, sphere_cloud

CONTENTS, COLORS = 6, 5
WIDTH, HEIGHT = 24, 16
# The number of spheres of every third scene, only two of which fit into 2 MiB, and of the other scenes.
_LARGE, _SMALL = 25_000, 40


class Parameters(NamedTuple):
    """The content of a scene."""

    content: int  # Number of the scene that was put.
    colors: int = 0  # Number of the colours that an update gave it; 0: those that it was put with.

    @property
    def tensors(self) -> dict[str, Array]:
        cloud = sphere_cloud(_SMALL if self.content % 3 else _LARGE, seed=self.content)
        return {**cloud, "colors": self.new_colors} if self.colors else cloud

    @property
    def new_colors(self) -> Array:
        count = _SMALL if self.content % 3 else _LARGE
        return np.random.default_rng(1000 + self.colors).random((count, 3), np.float32)


def spec(scene_id: str = "", version: int = 0) -> render_pb2.RenderSpec:
    """The specification of a small image of a stored scene."""
    made = spec_of(opencv_camera(WIDTH, HEIGHT), scene_id=scene_id, outputs=["color"])
    if version:
        made.scene_ref.version = version
    return made


@cache
def picture(parameters: Parameters) -> Array:
    """The image of `spec`, rendered in process."""
    color: Array = _forward(parameters, retain=False).outputs["color"].numpy()
    assert len(np.unique(color)) > 10, "the picture is nearly uniform"
    return color


@cache
def gradient(parameters: Parameters) -> Array:
    """The gradient of the sum of `picture` with respect to the colours."""
    forward = _forward(parameters, retain=True)
    ones = torch.ones_like(forward.outputs["color"])
    return SPHERES.backward(forward.state, {"color": ones}, ["colors"], lambda: None).gradients["colors"].numpy()


def _forward(parameters: Parameters, *, retain: bool) -> Any:
    tensors = {name: torch.from_numpy(array) for name, array in parameters.tensors.items()}
    engine = SPHERES
    plan = engine.plan(spec(), shapes_of(tensors), Limits.of(Config()), "spec")
    return engine.forward(plan, tensors, ["color"], retain=retain, before_view=lambda: None)
