"""One remote rendering of Gaussians and its gradients, from CPU tensors to CPU tensors. Knows nothing of autograd."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from lumigrad.client.client import Client
from lumigrad.client.frame import Frame
from lumigrad.client.gaussian_settings import GaussianSettings, Transform
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.gradients import Gradients
from lumigrad.client.request import RenderRequest, WireFormat
from lumigrad.client.torch.gaussian_cameras import CAMERA_INPUTS, CameraSource

# The tensors of the scene, named as in the contract.
SCENE_INPUTS = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors")
# All differentiable inputs of a rendering.
INPUTS = (*SCENE_INPUTS, "background", "transforms", *CAMERA_INPUTS)
Inputs = Mapping[str, torch.Tensor | None]


@dataclass(frozen=True)
class GaussianCall:
    """All of a rendering that is not a tensor.

    Attributes:
        client: the way to the worker.
        settings: how to blend; background and transforms come as tensors.
        cameras: makes the cameras from their tensors.
        batch: the leading sizes of the scene's tensors, one scene for each index; empty: a single scene.
        slices: (begin, end) of each transform.
        outputs: what to transfer.
        retain: a backward will probably come.
        wire_format: how gradients per Gaussian travel.
        sparse: only rows that are not zero travel.
        spread: several workers share the cameras.
    """

    client: Client
    settings: GaussianSettings
    cameras: CameraSource
    batch: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]
    outputs: tuple[str, ...]
    retain: bool
    wire_format: WireFormat = "float32"
    sparse: bool = False
    spread: bool = False

    def render(self, inputs: Inputs) -> Frame:
        """Renders all cameras; results have one axis of cameras, those of the first scene first.

        Args:
            inputs: CPU tensors by the names of `INPUTS`, None for those absent: of the scene with the leading sizes
                `batch`, float32; background [D] or [.., C, D], transforms [T, 4, 4], cameras as their source says.
        """
        arrays = {name: None if tensor is None else tensor.detach().numpy() for name, tensor in inputs.items()}
        scene = {name: arrays[name] for name in SCENE_INPUTS}
        if self.batch:
            scenes, rest = math.prod(self.batch), len(self.batch)
            scene = {
                name: None if array is None else array.reshape(scenes, *array.shape[rest:])
                for name, array in scene.items()
            }
        background, matrices = arrays["background"], arrays["transforms"]
        settings = replace(
            self.settings,
            background=() if background is None else tuple(background.ravel().tolist()),
            transforms=[
                Transform(begin, end, matrix)
                for (begin, end), matrix in zip(self.slices, () if matrices is None else matrices, strict=True)
            ],
        )
        request = RenderRequest(Gaussians(**scene), self.cameras.cameras(inputs), False, settings, self.outputs)
        return self.client.render_request(request, retain=self.retain, spread=self.spread)

    def gradients(
        self, frame: Frame, upstream: Mapping[str, torch.Tensor], wanted: Iterable[str], *, release: bool
    ) -> dict[str, torch.Tensor]:
        """Gradients on the CPU, dense, with as many values as the inputs but not always in their shape.

        Args:
            frame: what `render` returned.
            upstream: gradients of outputs, or of "means2d".
            wanted: names out of `INPUTS`, "means2d" and "means2d_abs".
            release: let the worker forget the forward state.
        """
        wanted = list(wanted)
        of_cameras = [name for name in wanted if name in CAMERA_INPUTS]
        names = [name for name in wanted if name not in CAMERA_INPUTS] + (["cameras"] if of_cameras else [])
        output_gradients: dict[str, Any] = dict(upstream)
        found = frame.backward(
            **output_gradients,
            wanted=names,
            sparse=self.sparse and any(name in SCENE_INPUTS for name in names),
            wire_format=self.wire_format,
            release=release,
        )
        scene = frame.request.scene
        assert isinstance(scene, Gaussians)
        tensors = {name: _dense(found, name, scene) for name in names if name != "cameras"}
        if of_cameras:
            every = self.cameras.gradients(found)
            tensors.update({name: every[name] for name in of_cameras})
        return tensors


def _dense(found: Gradients, name: str, scene: Gaussians) -> torch.Tensor:
    rows = torch.from_numpy(found[name])
    target = scene.tensors.get(name)
    if "index" not in found or target is None or target.size == rows.numel():
        return rows
    dense = torch.zeros(len(scene), *rows.shape[1:])
    dense[torch.from_numpy(found.index)] = rows
    return dense
