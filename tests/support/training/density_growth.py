"""A reference of adaptive density control in float64, one operation after another: grow, prune, copy."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lumigrad.kernels.density import STREAMS, Draw, Parameters, Thresholds
from support.rotations import rotations
from support.training import density_random

SHRINK = 1.6


@dataclass(frozen=True)
class Observed:
    """Mean gradient, largest scale, opacity and largest radius of each row, activated."""

    gradient: Tensor
    size: Tensor
    opacity: Tensor
    radius: Tensor


@dataclass(frozen=True)
class Growth:
    """The source rows of the next generation: those kept, those cloned and those split."""

    kept: Tensor
    cloned: Tensor
    split: Tensor

    @property
    def sources(self) -> Tensor:
        return torch.cat([self.kept, self.cloned, self.split, self.split])


def accumulated(gradient: Tensor, radii: Tensor, width: int, height: int) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of gradient lengths, numbers of views and largest radii, [N] each, from [C, N, 2] and [C, N, 2]."""
    views = gradient.shape[0]
    scaled = gradient.double() * torch.tensor([width / 2.0 * views, height / 2.0 * views])
    seen = (radii > 0).all(dim=2)
    lengths = torch.where(seen, scaled.norm(dim=2), 0.0).sum(dim=0)
    largest = torch.where(seen, radii.amax(dim=2).double(), 0.0).amax(dim=0) / max(width, height)
    return lengths, seen.sum(dim=0), largest


def observed(parameters: Parameters, gradient: Tensor, views: Tensor, radii: Tensor) -> Observed:
    """The values that density control compares with thresholds, from the parameters and the sums over views."""
    tensors = parameters.tensors
    mean = gradient.double() / views.clamp(min=1)
    if parameters.gaussians:
        size = tensors["scales"].double().exp().amax(dim=1)
        return Observed(mean, size, torch.sigmoid(tensors["opacities"].double()), radii.double())
    size = tensors["radii"].double()
    return Observed(mean, size, tensors.get("opacities", torch.ones_like(size)).double(), radii.double())


def growth(rows: Observed, to: Thresholds, extent: float, after_reset: bool, revised: bool) -> Growth:
    """Clones and splits, then prunes all rows, children by their own sizes and opacities."""

    def prune(size: Tensor, opacity: Tensor, radius: Tensor) -> Tensor:
        gone = opacity < to.prune_opacity
        if after_reset and to.prune_size is not None:
            gone |= size > to.prune_size * extent
        if after_reset and to.prune_radius is not None:
            gone |= radius > to.prune_radius
        return gone

    grows = rows.gradient > to.grow_gradient
    small = rows.size <= to.clone_size * extent
    split = grows & ~small
    if to.split_radius is not None:
        split |= rows.radius > to.split_radius
    child_opacity = 1.0 - (1.0 - rows.opacity).sqrt() if revised else rows.opacity
    stays = ~prune(rows.size, rows.opacity, rows.radius)
    children_stay = ~prune(rows.size / SHRINK, child_opacity, rows.radius)
    kept = torch.nonzero(~split & stays)[:, 0]
    cloned = torch.nonzero(~split & grows & stays)[:, 0]
    return Growth(kept, cloned, torch.nonzero(split & children_stay)[:, 0])


def children(parameters: Parameters, split: Tensor, draw: Draw, revised: bool) -> dict[str, Tensor]:
    """The float64 values of split children: those of all first children, then of all second ones."""
    rows = split.numpy()

    def normals(stream: str) -> Tensor:
        drawn = density_random.normals(draw.seed, draw.step, STREAMS.index(stream), np.asarray(rows))
        return torch.from_numpy(drawn[:, :3])

    tensors = {name: tensor[split].double() for name, tensor in parameters.tensors.items()}
    if not parameters.gaussians:
        offset = 0.5 * tensors["radii"][:, None] * torch.nn.functional.normalize(normals("first_child"), dim=1)
        positions = torch.cat([tensors["positions"] + offset, tensors["positions"] - offset])
        return {"positions": positions, "radii": (tensors["radii"] / SHRINK).repeat(2)}
    axes = rotations(tensors["quats"].double()) * tensors["scales"].exp()[:, None]
    offsets = [torch.einsum("nij,nj->ni", axes, normals(stream)) for stream in ("first_child", "second_child")]
    found = {
        "means": torch.cat([tensors["means"] + offset for offset in offsets]),
        "scales": (tensors["scales"] - math.log(SHRINK)).repeat(2, 1),
    }
    if revised:
        opacity = 1.0 - (1.0 - torch.sigmoid(tensors["opacities"])).sqrt()
        found["opacities"] = torch.logit(opacity).repeat(2)
    return found
