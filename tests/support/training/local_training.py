"""A reference training: torch's autograd, loss and Adam in this process, with images rendered by a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lumigrad.client import Camera, Client, Gaussians, Spheres
from lumigrad.client.torch import render_gaussians, render_spheres
from lumigrad.client.training import Loss, Rate
from support.training.losses import similarity


def loss_of(loss: Loss, picture: torch.Tensor, target_image: torch.Tensor) -> torch.Tensor:
    """The weighted sum of the terms that compare colours."""
    difference = picture - target_image
    total = loss.l1 * difference.abs().mean() + loss.l2 * difference.square().mean()
    return total + loss.dssim * (1 - similarity(picture, target_image, loss.padding).mean()) if loss.dssim else total


class LocalTraining:
    """Raw parameters, Adam with a group for each, and images from a worker."""

    def __init__(
        self,
        scene: Gaussians | Spheres,
        rates: Mapping[str, Rate | float],
        client: Client,
        epsilon: float,
        **settings: Any,
    ):
        self._client = client
        if "background" in settings:
            settings["background"] = torch.tensor(settings["background"])
        self._settings = settings
        self._rates = {name: rate if isinstance(rate, Rate) else Rate(rate) for name, rate in rates.items()}
        self.raw = _raw(scene)
        groups = [{"params": [self.raw[name].requires_grad_()], "name": name} for name in self._rates]
        self._optimizer = torch.optim.Adam(groups, lr=0.0, eps=epsilon)
        self._is_gaussian = isinstance(scene, Gaussians)

    def values(self) -> dict[str, torch.Tensor]:
        """The parameters after their activations, as a scene has them."""
        activations: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
            "scales": torch.exp, "radii": torch.exp, "opacities": torch.sigmoid,
        }  # fmt: skip
        values = {name: activations.get(name, lambda raw: raw)(raw) for name, raw in self.raw.items()}
        if "sh0" in values:
            values["sh"] = torch.cat([values.pop("sh0"), values.pop("sh_rest")], dim=1)
        return values

    def render(self, cameras: Sequence[Camera]) -> torch.Tensor:
        """[C, H, W, K]."""
        values = self.values()
        if not self._is_gaussian:
            pictures = [self._sphere_picture(values, camera) for camera in cameras]
            return torch.stack(pictures)
        models = [camera.model for camera in cameras]
        views = np.stack([np.vstack([np.column_stack([m.rotation, m.translation]), [0, 0, 0, 1]]) for m in models])
        lenses = np.stack([[[m.fx, 0, m.cx], [0, m.fy, m.cy], [0, 0, 1]] for m in models])
        sh = values.get("sh")
        return render_gaussians(
            values["means"], values["quats"], values["scales"], values["opacities"],
            values["colors"] if sh is None else sh, torch.tensor(views), torch.tensor(lenses),
            width=cameras[0].width, height=cameras[0].height,
            sh_degree=None if sh is None else int(sh.shape[1] ** 0.5 + 0.5) - 1,
            client=self._client, outputs=("color",),
        ).color  # fmt: skip

    def step(self, number: int, cameras: Sequence[Camera], target_image: torch.Tensor, loss: Loss) -> float:
        for group in self._optimizer.param_groups:
            group["lr"] = _rate_at(self._rates[group["name"]], number)
        self._optimizer.zero_grad()
        total = loss_of(loss, self.render(cameras), target_image)
        torch.autograd.backward(total)
        self._optimizer.step()
        return float(total.detach())

    def _sphere_picture(self, values: Mapping[str, torch.Tensor], camera: Camera) -> torch.Tensor:
        return render_spheres(
            values["positions"], values["colors"], values["radii"], camera, opacities=values.get("opacities"),
            client=self._client, **self._settings,
        ).color  # fmt: skip


def _raw(scene: Gaussians | Spheres) -> dict[str, torch.Tensor]:
    raw = {}
    for name, array in scene.tensors.items():
        value = torch.tensor(array)
        if name in ("scales", "radii"):
            raw[name] = value.log()
        elif name == "opacities":
            raw[name] = value.double().logit().float()
        elif name == "sh":
            raw["sh0"], raw["sh_rest"] = value[:, :1].clone(), value[:, 1:].clone()
        else:
            raw[name] = value
    return raw


def _rate_at(rate: Rate, step: int) -> float:
    if rate.final is None:
        return rate.initial
    return float(rate.initial * (rate.final / rate.initial) ** min(step / rate.steps, 1.0))
