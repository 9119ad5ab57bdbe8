"""One remote rendering of Gaussians and its gradients, from NumPy arrays to NumPy arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lumigrad.client.camera import Camera
from lumigrad.client.camera_models import Projection
from lumigrad.client.client import Client
from lumigrad.client.frame import Frame
from lumigrad.client.gaussian_settings import GaussianSettings, Transform
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.jax.remote import Inputs
from lumigrad.client.named_arrays import Array
from lumigrad.client.request import RenderRequest, WireFormat

SCENE_INPUTS = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors")
_CAMERA_INPUTS = ("viewmats", "Ks")
# Where the four intrinsics stand in K, in the order of their gradients.
_INTRINSICS = ((0, 0), (1, 1), (0, 2), (1, 2))


@dataclass(frozen=True)
class GaussianCall:
    """All of a rendering that is not an array; see `RemoteCall`.

    Attributes:
        client: the way to the worker.
        settings: how to blend; background and transforms come as arrays.
        size: width and height, pixels.
        model: of all cameras.
        distortion: coefficients, one row for each camera; empty: none.
        slices: (begin, end) of each transform.
        outputs: what to transfer.
        wire_format: how gradients per Gaussian travel.
    """

    client: Client
    settings: GaussianSettings
    size: tuple[int, int]
    model: Projection
    distortion: tuple[tuple[float, ...], ...]
    slices: tuple[tuple[int, int], ...]
    outputs: tuple[str, ...]
    wire_format: WireFormat

    @property
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow: all that are rendered."""
        return frozenset(self.outputs)

    def shapes(self, inputs: Inputs) -> dict[str, tuple[int, ...]]:
        """[C, H, W] of each output, and [C, H, W, D] of the colour."""
        width, height = self.size
        colors = inputs["colors"] if inputs["sh"] is None else inputs["sh"]
        views = (len(inputs["viewmats"]), height, width)
        return {name: (*views, colors.shape[-1]) if name == "color" else views for name in self.outputs}

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Frame:
        """Renders on the worker."""
        background, matrices = inputs["background"], inputs["transforms"]
        settings = replace(
            self.settings,
            background=() if background is None else tuple(background.ravel().tolist()),
            transforms=[
                Transform(begin, end, matrix)
                for (begin, end), matrix in zip(self.slices, () if matrices is None else matrices, strict=True)
            ],
        )
        scene = Gaussians(**{name: inputs[name] for name in SCENE_INPUTS})
        request = RenderRequest(scene, self._cameras(inputs["viewmats"], inputs["Ks"]), False, settings, self.outputs)
        return self.client.render_request(request, retain=retain)

    def gradients(self, result: Frame, upstream: Mapping[str, Array], wanted: tuple[str, ...]) -> Mapping[str, Array]:
        """Those of cameras as of their matrices, 0 for entries that are fixed."""
        of_cameras = any(name in _CAMERA_INPUTS for name in wanted)
        names = [name for name in wanted if name not in _CAMERA_INPUTS] + (["cameras"] if of_cameras else [])
        given: dict[str, Any] = dict(upstream)
        found = dict(result.backward(**given, wanted=names, wire_format=self.wire_format, release=True))
        if of_cameras:
            count = len(found["camera_rotation"])
            views, intrinsics = np.zeros((count, 4, 4), np.float32), np.zeros((count, 3, 3), np.float32)
            views[:, :3, :3], views[:, :3, 3] = found["camera_rotation"], found["camera_translation"]
            for column, (row, entry) in enumerate(_INTRINSICS):
                intrinsics[:, row, entry] = found["camera_intrinsics"][:, column]
            found |= {"viewmats": views, "Ks": intrinsics}
        return found

    def refuse_gradients(self, names: frozenset[str]) -> None:
        """All inputs have gradients."""

    def _cameras(self, views: Any, intrinsics: Any) -> tuple[Camera, ...]:
        distortion = self.distortion or ((),) * len(views)
        return tuple(
            Camera.from_view_matrix(view, k, *self.size, model=self.model, distortion=row)
            for view, k, row in zip(views, intrinsics, distortion, strict=True)
        )
