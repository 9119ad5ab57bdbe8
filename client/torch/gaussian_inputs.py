"""Checks and prepares the inputs of the Gaussian operators."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lumigrad.client.base.arrays import check_shape, shape_text
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.cameras import Arrays, Views
from lumigrad.client.operators.gaussians import (
    COLUMNS,
    INPUTS,
    ROWS,
    TRANSFORM_INPUTS,
    check_matrices,
    used_coefficients,
)
from lumigrad.client.torch.remote import Tensors, on_host
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle

TENSORS = Arrays(
    real=partial(on_host, dtype=torch.float64), single=on_host, repeated=lambda tensor, count: tensor.expand(count, -1)
)


def of_cameras(views: Views, means: Any, scene: SceneHandle | None = None) -> dict[str, Any]:
    """Returns the arrays of the passed cameras, repeated for each scene of a batch, which may be stored."""
    batch = tuple(getattr(means, "shape", ()))[:-2]
    if means is None and scene is not None and isinstance(scene.scene, Gaussians) and scene.scene.scenes is not None:
        batch = (scene.scene.scenes,)
    return {name: np.broadcast_to(array, (*batch, *array.shape)).copy() for name, array in views.inputs.items()}


@dataclass(frozen=True)
class Prepared:
    """The checked inputs by the names of `INPUTS`, and their common sizes.

    Attributes:
        inputs: CPU tensors, connected to the caller's tensors in the autograd graph.
        batch: leading sizes, with one scene for each index; empty: a single scene.
        cameras: C, the number of cameras per scene.
        count: N, the number of Gaussians per scene.
        device: the device of the results: that of the caller's means, or else of viewmats.
    """

    inputs: Tensors
    batch: tuple[int, ...]
    cameras: int
    count: int
    device: torch.device

    @property
    def views(self) -> tuple[int, ...]:
        """The sizes [.., C] of all cameras."""
        return (*self.batch, self.cameras)

    def placed(self, images: torch.Tensor) -> torch.Tensor:
        """Converts results [V, ...] of all cameras to [.., C, ...], on the caller's device."""
        return images.reshape(*self.views, *images.shape[1:]).to(self.device)


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
    background: Any = None,
    covariances: Any = None,
    transforms: Sequence[Sequence[Any]] = (),
    scene: SceneHandle | None = None,
) -> Prepared:
    """Checks the shapes of the arguments of `render_gaussians` and copies them to the host.

    All but the background may have leading sizes, which are optional for spherical harmonics coefficients. Tensors that
    a stored `scene` has may be None.
    """
    first = viewmats if means is None else means
    device = first.device if isinstance(first, torch.Tensor) else torch.device("cpu")
    if scene is None or means is not None:
        means = _shaped("means", means, (..., "N", 3))
        *batch, count, _ = means.shape
        views = _shaped("viewmats", viewmats, (*batch, "C", 4, 4), torch.float64)
    else:
        views = _shaped("viewmats", viewmats, (..., "C", 4, 4), torch.float64)
        batch, count = list(views.shape[:-3]), _count(scene, views)
    cameras = views.shape[-3]
    inputs: dict[str, torch.Tensor | None] = dict.fromkeys(INPUTS)
    inputs |= {"means": means, "view": views}
    inputs["projection"] = _shaped("Ks", Ks, (*batch, cameras, 3, 3), torch.float64)

    def add(target: str, name: str, value: Any, shape: Sequence[Any]) -> None:
        if scene is None or value is not None:
            inputs[target] = _shaped(name, value, shape)

    add("opacities", "opacities", opacities, (*batch, count))
    if covariances is None:
        add("quats", "quats", quats, (*batch, count, 4))
        add("scales", "scales", scales, (*batch, count, 3))
    else:
        inputs["covariances"] = six_numbers(_shaped("covariances", covariances, (*batch, count, 3, 3)))
    if scene is None or colors is not None:
        if sh_degree is None:
            inputs["colors"] = _colors(colors, tuple(batch), count, cameras)
        else:
            inputs["sh"] = _harmonics(colors, tuple(batch), count, sh_degree)
    if background is not None:
        shared = on_host("background", background)
        shown = inputs["colors"] if inputs["sh"] is None else inputs["sh"]
        channels = "D" if shown is None else shown.shape[-1]
        if shared.ndim == 0 and shown is not None:
            shared = shared.expand(shown.shape[-1])
        own = (channels,) if shared.ndim == 1 else (*batch, cameras, channels)
        inputs["background"] = _shaped("background", shared, own)
    for name, at in zip(TRANSFORM_INPUTS, (2, 3), strict=True):
        given = {
            f"transforms[{k}]": entry[at] for k, entry in enumerate(transforms) if entry[at:] and entry[at] is not None
        }
        if given:
            inputs[name] = torch.stack([_shaped(key, m, (4, 4), torch.float64) for key, m in given.items()])
    return Prepared(inputs, tuple(batch), cameras, count, device)


def _count(scene: SceneHandle, views: torch.Tensor) -> int:
    """Returns N, the number of Gaussians per stored scene; the leading sizes of `views` give the number of scenes."""
    scenes = math.prod(views.shape[:-3])
    known = scene.scene.scenes if isinstance(scene.scene, Gaussians) else None
    if scene.scene is not None and scenes != (known or 1):
        expected = "[C, 4, 4]" if known is None else f"[{known}, C, 4, 4]"
        shape = list(views.shape)
        raise InvalidArgument.of("viewmats", f"expected shape {expected} for the stored scene, got {shape}")
    return scene.count // max(scenes, 1)


def check_cameras(inputs: Tensors) -> None:
    """Raises InvalidArgument for view matrices [.., 4, 4] and Ks [.., 3, 3] whose fixed entries are wrong."""
    matrices = [inputs[name] for name in ("view", "projection")]
    check_matrices(*(matrix.detach().numpy() for matrix in matrices if matrix is not None))


def _shaped(name: str, value: Any, shape: Sequence[Any], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Copies `value` to the host and checks its shape; a string matches any size, a leading ellipsis any sizes."""
    if value is None:
        raise InvalidArgument.of(name, f"expected a tensor of shape {shape_text(shape)}, got None")
    tensor = on_host(name, value, dtype)
    check_shape(name, tensor.shape, shape)
    return tensor


def six_numbers(matrices: torch.Tensor) -> torch.Tensor:
    """Returns the six numbers [.., 6] of symmetric matrices; averages both triangles for symmetric gradients."""
    symmetric = (matrices + matrices.transpose(-1, -2)) / 2
    return symmetric[..., ROWS, COLUMNS]


def _colors(colors: Any, batch: tuple[int, ...], count: int, cameras: int) -> torch.Tensor:
    tensor = on_host("colors", colors)
    per_camera = tensor.ndim == len(batch) + 3
    if per_camera and tensor.shape[-3:-1] != (cameras, count) and tensor.shape[-3] == count:
        raise InvalidArgument.of(
            "colors",
            f"expected shape {shape_text((*batch, count, 'D'))} or {shape_text((*batch, cameras, count, 'D'))}, got "
            f"{list(tensor.shape)}; pass sh_degree if these are coefficients of spherical harmonics",
        )
    return _shaped("colors", tensor, (*batch, *((cameras,) if per_camera else ()), count, "D"))


def _harmonics(colors: Any, batch: tuple[int, ...], count: int, sh_degree: int) -> torch.Tensor:
    tensor = on_host("colors", colors)
    shared = tensor.ndim == 3
    tensor = _shaped("colors", tensor, (*(() if shared else batch), count, "K", "D"))
    active = used_coefficients(sh_degree, tensor.shape[-2])
    tensor = tensor[..., :active, :] if tensor.shape[-2] > active else tensor
    return tensor.expand(*batch, *tensor.shape) if shared and batch else tensor
