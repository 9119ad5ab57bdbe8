"""Density control as sequences of torch operations, as trainers implement it, to compare the kernels with."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lumigrad.kernels.density import Parameters, Statistics, Thresholds
from support.rotations import rotations

Map = Callable[[str, Tensor], Tensor]
_MOST_SHARES = 51


@dataclass
class Cloud:
    """Tensors and moments that are replaced as they grow."""

    tensors: dict[str, Tensor]
    moments: dict[str, tuple[Tensor, Tensor]]

    @staticmethod
    def of(parameters: Parameters) -> Cloud:
        """A cloud of the same tensors."""
        moments = {name: (several[0], several[1]) for name, several in parameters.moments.items()}
        return Cloud(dict(parameters.tensors), moments)

    def change(self, tensors: Map, moments: Map) -> None:
        """Replaces each tensor and each moment."""
        self.tensors = {name: tensors(name, tensor) for name, tensor in self.tensors.items()}
        self.moments = {
            name: (moments(name, first), moments(name, second)) for name, (first, second) in self.moments.items()
        }


def accumulate(to: Statistics, gradient: Tensor, radii: Tensor, width: int, height: int) -> None:
    """Accumulates gradient lengths, views and radii of visible Gaussians, in place."""
    scaled = gradient * gradient.new_tensor([width / 2 * len(gradient), height / 2 * len(gradient)])
    seen = (radii > 0).all(dim=2)
    rows = torch.where(seen)[1]
    to.gradient.index_add_(0, rows, scaled[seen].norm(dim=1))
    to.views.index_add_(0, rows, torch.ones_like(rows, dtype=torch.int32))
    largest = radii[seen].amax(dim=1) / float(max(width, height))
    to.radii.scatter_reduce_(0, rows, largest, "amax")


def grow_and_prune(cloud: Cloud, statistics: Statistics, to: Thresholds, extent: float) -> None:
    """Clones, then splits, then prunes, each in a pass over all tensors."""
    grows = statistics.gradient / statistics.views.clamp(min=1) > to.grow_gradient
    small = cloud.tensors["scales"].exp().amax(dim=1) <= to.clone_size * extent
    clones = torch.where(grows & small)[0]
    splits = torch.cat([grows & ~small, torch.zeros_like(clones, dtype=torch.bool)])
    cloud.change(
        lambda _, tensor: torch.cat([tensor, tensor[clones]]),
        lambda _, moment: torch.cat([moment, moment.new_zeros(len(clones), *moment.shape[1:])]),
    )
    chosen, rest = torch.where(splits)[0], torch.where(~splits)[0]
    scales = cloud.tensors["scales"][chosen].exp()
    offsets = torch.einsum(
        "nij,nj,bnj->bni",
        rotations(cloud.tensors["quats"][chosen]),
        scales,
        scales.new_empty(2, *scales.shape).normal_(),
    )

    def children(name: str, tensor: Tensor) -> Tensor:
        if name == "means":
            made = (tensor[chosen] + offsets).reshape(-1, 3)
        elif name == "scales":
            made = torch.log(scales / 1.6).repeat(2, 1)
        else:
            made = tensor[chosen].repeat(2, *[1] * (tensor.dim() - 1))
        return torch.cat([tensor[rest], made])

    cloud.change(
        children, lambda _, moment: torch.cat([moment[rest], moment.new_zeros(2 * len(chosen), *moment.shape[1:])])
    )
    gone = torch.sigmoid(cloud.tensors["opacities"]) < to.prune_opacity
    gone |= cloud.tensors["scales"].exp().amax(dim=1) > (to.prune_size or math.inf) * extent
    stay = torch.where(~gone)[0]
    cloud.change(lambda _, tensor: tensor[stay], lambda _, moment: moment[stay])


def _coefficients() -> Tensor:
    rows = [
        [0.0] + [math.comb(n, k) * (-1) ** (k + 1) / math.sqrt(k) for k in range(1, _MOST_SHARES + 1)]
        for n in range(_MOST_SHARES + 1)
    ]
    return torch.tensor(rows, dtype=torch.float64)


COEFFICIENTS = _coefficients()


def _shares(cloud: Cloud, rows: Tensor, min_opacity: float) -> tuple[Tensor, Tensor]:
    """Raw opacities and scales of the rows that were drawn, by equation 9 of 3DGS as MCMC."""
    counts = (torch.bincount(rows)[rows] + 1).clamp(max=_MOST_SHARES)
    opacities = torch.sigmoid(cloud.tensors["opacities"][rows]).double()
    shared = 1 - (1 - opacities) ** (1 / counts)
    powers = shared[:, None] ** torch.arange(_MOST_SHARES + 1, device=rows.device)
    factor = opacities / (COEFFICIENTS.to(rows.device)[counts] * powers).sum(dim=1)
    bounded = shared.clamp(min_opacity, 1 - 2**-23).float()
    return torch.logit(bounded), cloud.tensors["scales"][rows] + factor.log().float()[:, None]


def relocate(cloud: Cloud, min_opacity: float = 0.005) -> None:
    """Turns dead rows into shares of living ones, in place."""
    opacities = torch.sigmoid(cloud.tensors["opacities"])
    dead, alive = torch.where(opacities <= min_opacity)[0], torch.where(opacities > min_opacity)[0]
    rows = alive[torch.multinomial(opacities[alive], len(dead), replacement=True)]
    cloud.tensors["opacities"][rows], cloud.tensors["scales"][rows] = _shares(cloud, rows, min_opacity)
    for tensor in cloud.tensors.values():
        tensor[dead] = tensor[rows]
    for moments in cloud.moments.values():
        for moment in moments:
            moment[rows] = 0
            moment[dead] = 0


def add(cloud: Cloud, cap: int, min_opacity: float = 0.005) -> None:
    """Adds five per cent more Gaussians."""
    count = len(cloud.tensors["means"])
    added = min(cap, int(1.05 * count)) - count
    rows = torch.multinomial(torch.sigmoid(cloud.tensors["opacities"]), added, replacement=True)
    cloud.tensors["opacities"][rows], cloud.tensors["scales"][rows] = _shares(cloud, rows, min_opacity)
    cloud.change(
        lambda _, tensor: torch.cat([tensor, tensor[rows]]),
        lambda _, moment: torch.cat([moment, moment.new_zeros(added, *moment.shape[1:])]),
    )


def add_noise(cloud: Cloud, strength: float) -> None:
    """Moves nearly transparent Gaussians within their ellipsoids, in place."""
    tensors = cloud.tensors
    axes = rotations(tensors["quats"]) * tensors["scales"].exp()[:, None]
    gate = torch.sigmoid(100.0 * (0.005 - torch.sigmoid(tensors["opacities"])))
    noise = torch.randn_like(tensors["means"]) * (strength * gate)[:, None]
    tensors["means"] += torch.einsum("nij,nj->ni", axes @ axes.transpose(1, 2), noise)
