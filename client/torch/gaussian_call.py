"""Inputs of the Gaussian operator: checks, and the request that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.timings import Gradients
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import RenderRequest, WireFormat
from lumigrad.client.settings.gaussians import GaussianSettings, Transform
from lumigrad.client.torch.gaussian_cameras import CAMERA_INPUTS, CameraSource
from lumigrad.client.torch.graphs import on_host
from lumigrad.client.torch.remote import Tensors
from lumigrad.client.values.gaussians import Gaussians

# The tensors of the scene, named as in the contract.
SCENE_INPUTS = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors")
# All differentiable inputs of a rendering.
INPUTS = (*SCENE_INPUTS, "background", "transforms", *CAMERA_INPUTS)
# The images through which gradients flow.
IMAGES = ("color", "transmittance", "depth", "inverse_depth")


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
    wire_format: WireFormat = "float32"
    sparse: bool = False
    spread: bool = False

    @property
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""
        return frozenset((*IMAGES, "means2d"))

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Frame:
        """Renders all cameras; results have one axis of cameras, those of the first scene first.

        Args:
            inputs: by the names of `INPUTS`: of the scene with the leading sizes `batch`, float32; background [D] or
                [.., C, D], transforms [T, 4, 4], cameras as their source says.
            retain: a backward pass will probably come.
        """
        scene = {name: inputs[name] for name in SCENE_INPUTS}
        if self.batch:
            scenes, rest = math.prod(self.batch), len(self.batch)
            scene = {
                name: None if array is None else array.reshape(scenes, *array.shape[rest:])
                for name, array in scene.items()
            }
        background, matrices = inputs["background"], inputs["transforms"]
        settings = replace(
            self.settings,
            background=() if background is None else tuple(background.ravel().tolist()),
            transforms=[
                Transform(begin, end, matrix)
                for (begin, end), matrix in zip(self.slices, () if matrices is None else matrices, strict=True)
            ],
        )
        request = RenderRequest(Gaussians(**scene), self.cameras.cameras(inputs), False, settings, self.outputs)
        return self.client.render_request(request, retain=retain, spread=self.spread)

    def gradients(
        self, result: Frame, upstream: Mapping[str, torch.Tensor], wanted: Sequence[str], release: bool
    ) -> dict[str, torch.Tensor]:
        """Gradients on the CPU, dense, with as many values as the inputs but not always in their shape.

        Args:
            result: what `run` returned.
            upstream: gradients of outputs, or of "means2d".
            wanted: names out of `INPUTS`, "means2d" and "means2d_abs".
            release: let the worker forget the forward state.
        """
        of_cameras = [name for name in wanted if name in CAMERA_INPUTS]
        names = [name for name in wanted if name not in CAMERA_INPUTS] + (["cameras"] if of_cameras else [])
        given: dict[str, Any] = dict(upstream)
        sparse = self.sparse and any(name in SCENE_INPUTS for name in names)
        found = result.backward(**given, wanted=names, sparse=sparse, wire_format=self.wire_format, release=release)
        scene = result.request.scene
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


# Row and column of the six numbers of a symmetric matrix, in the order of the contract.
_ROWS, _COLUMNS = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)


@dataclass(frozen=True)
class Prepared:
    """Tensors by the names of `INPUTS`, and the sizes that they share.

    Attributes:
        inputs: CPU tensors, in the autograd graph of what was passed.
        batch: leading sizes, one scene for each index; empty: a single scene.
        cameras: C, of each scene.
        count: N, of each scene.
        device: of the means as passed; results belong there.
    """

    inputs: Tensors
    batch: tuple[int, ...]
    cameras: int
    count: int
    device: torch.device

    @property
    def matrices(self) -> tuple[torch.Tensor, torch.Tensor]:
        """View matrices [.., C, 4, 4] and intrinsics [.., C, 3, 3]."""
        view, intrinsics = self.inputs["view"], self.inputs["projection"]
        assert view is not None and intrinsics is not None
        return view, intrinsics

    @property
    def views(self) -> tuple[int, ...]:
        """The sizes [.., C] of all cameras."""
        return (*self.batch, self.cameras)


def prepared(
    *,
    means: Any,
    quats: Any,
    scales: Any,
    opacities: Any,
    colors: Any,
    viewmats: Any,
    Ks: Any,
    sh_degree: int | None,
    backgrounds: Any = None,
    covars: Any = None,
    matrices: Sequence[Any] = (),
) -> Prepared:
    """Checks shapes and brings everything to the host.

    Args:
        means: [.., N, 3].
        quats: [.., N, 4]; ignored with covars.
        scales: [.., N, 3]; ignored with covars.
        opacities: [.., N].
        colors: [.., N, D] or [.., C, N, D], with sh_degree coefficients [N, K, D] or [.., N, K, D].
        viewmats: [.., C, 4, 4].
        Ks: [.., C, 3, 3].
        sh_degree: degree in use; None: colours are given.
        backgrounds: [.., C, D] or [D].
        covars: [.., N, 3, 3], instead of quats and scales.
        matrices: [4, 4] of each transform.
    """
    device = means.device if isinstance(means, torch.Tensor) else torch.device("cpu")
    means = _shaped("means", means, (..., "N", 3))
    *batch, count, _ = means.shape
    views = _shaped("viewmats", viewmats, (*batch, "C", 4, 4), torch.float64)
    cameras = views.shape[-3]
    inputs: dict[str, torch.Tensor | None] = dict.fromkeys(INPUTS)
    inputs |= {
        "means": means,
        "opacities": _shaped("opacities", opacities, (*batch, count)),
        "view": views,
        "projection": _shaped("Ks", Ks, (*batch, cameras, 3, 3), torch.float64),
    }
    if covars is None:
        inputs["quats"] = _shaped("quats", quats, (*batch, count, 4))
        inputs["scales"] = _shaped("scales", scales, (*batch, count, 3))
    else:
        inputs["covariances"] = _six_numbers(_shaped("covars", covars, (*batch, count, 3, 3)))
    if sh_degree is None:
        inputs["colors"] = _colors(colors, tuple(batch), count, cameras)
    else:
        inputs["sh"] = _harmonics(colors, tuple(batch), count, sh_degree)
    if backgrounds is not None:
        shared = on_host("backgrounds", backgrounds)
        channels = colors.shape[-1]
        inputs["background"] = _shaped(
            "backgrounds", shared, (channels,) if shared.ndim == 1 else (*batch, cameras, channels)
        )
    if len(matrices):
        inputs["transforms"] = torch.stack(
            [_shaped(f"transforms[{k}]", matrix, (4, 4), torch.float64) for k, matrix in enumerate(matrices)]
        )
    return Prepared(inputs, tuple(batch), cameras, count, device)


def _shaped(name: str, value: Any, shape: Sequence[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """`value` on the host; a string stands for any size, a leading ellipsis for any sizes."""
    if value is None:
        raise InvalidArgument.of(name, f"expected a tensor of shape {_written(shape)}, got None")
    tensor = on_host(name, value, dtype)
    tail = shape[1:] if shape[0] is ... else shape
    actual = tensor.shape[tensor.ndim - len(tail) :] if shape[0] is ... else tensor.shape
    fits = len(actual) == len(tail) and all(
        isinstance(size, str) or size == found for size, found in zip(tail, actual, strict=True)
    )
    if not fits:
        raise InvalidArgument.of(name, f"expected shape {_written(shape)}, got {list(tensor.shape)}")
    return tensor


def _written(shape: Sequence[Any]) -> str:
    return "[" + ", ".join(".." if size is ... else str(size) for size in shape) + "]"


def _six_numbers(matrices: torch.Tensor) -> torch.Tensor:
    """[.., 6]; both halves of the matrix count half, so that their gradient is symmetric."""
    symmetric = (matrices + matrices.transpose(-1, -2)) / 2
    return symmetric[..., _ROWS, _COLUMNS]


def _colors(colors: Any, batch: tuple[int, ...], count: int, cameras: int) -> torch.Tensor:
    tensor = on_host("colors", colors)
    per_camera = tensor.ndim == len(batch) + 3
    if per_camera and tensor.shape[-3:-1] != (cameras, count) and tensor.shape[-3] == count:
        raise InvalidArgument.of(
            "colors",
            f"expected shape {_written((*batch, count, 'D'))} or {_written((*batch, cameras, count, 'D'))}, got "
            f"{list(tensor.shape)}; pass sh_degree if these are coefficients of spherical harmonics",
        )
    return _shaped("colors", tensor, (*batch, *((cameras,) if per_camera else ()), count, "D"))


def _harmonics(colors: Any, batch: tuple[int, ...], count: int, sh_degree: int) -> torch.Tensor:
    tensor = on_host("colors", colors)
    shared = tensor.ndim == 3
    tensor = _shaped("colors", tensor, (*(() if shared else batch), count, "K", "D"))
    active = (sh_degree + 1) ** 2
    if not 0 <= sh_degree <= 4 or tensor.shape[-2] < active:
        raise InvalidArgument.of(
            "sh_degree",
            f"expected a degree from 0 to 4 whose (degree + 1)^2 coefficients colors have, got {sh_degree} and "
            f"{tensor.shape[-2]} coefficients",
        )
    # What is not in use need not travel.
    tensor = tensor[..., :active, :] if tensor.shape[-2] > active else tensor
    return tensor.expand(*batch, *tensor.shape) if shared and batch else tensor
