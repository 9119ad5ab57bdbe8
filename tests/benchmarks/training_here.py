"""The steps of the training benchmark that are made in this process."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from lumigrad.client import Camera, Client, Gaussians, Loss
from lumigrad.client.torch import render_gaussians
from lumigrad.client.values.camera_models import OpenCVModel
from lumigrad.kernels import gaussians as kernels
from lumigrad.kernels import training
from support.training.local_training import loss_of

RATES = {"means": 1.6e-4, "quats": 1e-3, "scales": 5e-3, "opacities": 5e-2, "sh": 2.5e-3}
Bytes = NDArray[np.uint8]


def _raw(scene: Gaussians) -> dict[str, torch.Tensor]:
    values = {name: torch.tensor(array) for name, array in scene.tensors.items()}
    values["scales"] = values["scales"].log()
    values["opacities"] = values["opacities"].clamp(1e-4, 1 - 1e-4).logit()
    return values


class WithRemoteGradients:
    """Parameters, loss and optimiser of torch in this process; images and gradients from a worker."""

    def __init__(self, scene: Gaussians, camera: Camera, photograph: Bytes, client: Client) -> None:
        self._client, self._camera = client, camera
        self._target_image = torch.tensor(photograph)[None] / 255
        self._raw = {name: value.requires_grad_() for name, value in _raw(scene).items()}
        groups = [{"params": [self._raw[name]], "lr": rate} for name, rate in RATES.items()]
        self._optimizer = torch.optim.Adam(groups, eps=1e-15, fused=True)

    def step(self) -> None:
        raw, view, lens = self._raw, self._camera.view_matrix, self._camera.K
        picture = render_gaussians(
            raw["means"], raw["quats"], raw["scales"].exp(), raw["opacities"].sigmoid(), raw["sh"],
            torch.tensor(view)[None], torch.tensor(lens)[None], width=self._camera.width, height=self._camera.height,
            sh_degree=3, outputs=("color",), client=self._client,
        ).color  # fmt: skip
        self._optimizer.zero_grad()
        torch.autograd.backward(loss_of(Loss(), picture, self._target_image))
        self._optimizer.step()


class InProcess:
    """Training with the kernels in this process."""

    def __init__(self, scene: Gaussians, camera: Camera, photograph: Bytes) -> None:
        model = camera.model
        assert isinstance(model, OpenCVModel)
        self._camera = kernels.Camera.opencv(
            model.fx, model.fy, model.cx, model.cy, model.rotation, model.translation, camera.width, camera.height
        )
        self._target_image = torch.tensor(photograph)[None]
        self._raw = _raw(scene)
        self._value = {**self._raw, "scales": self._raw["scales"].exp(), "opacities": self._raw["opacities"].sigmoid()}
        self._moments = {name: (torch.zeros_like(raw), torch.zeros_like(raw)) for name, raw in self._raw.items()}
        self._number = 0

    def step(self) -> None:
        self._number += 1
        scene = kernels.Gaussians(**self._value)
        forward = kernels.forward(scene, [self._camera], kernels.Settings(), outputs=("color",), retain=True)
        assert forward.state is not None
        found = training.image_loss(forward.outputs["color"], self._target_image, l1=0.8, dssim=0.2)
        gradients = kernels.backward(forward.state, {"color": found.gradient}, tuple(RATES)).gradients
        parameters = {name: self._parameter(name, gradients[name], rate) for name, rate in RATES.items()}
        training.adam_step(parameters, step=self._number, betas=(0.9, 0.999), epsilon=1e-15)

    def _parameter(self, name: str, gradient: torch.Tensor, rate: float) -> training.Parameter:
        activation = {"scales": "exp", "opacities": "sigmoid"}.get(name, "identity")
        first, second = self._moments[name]
        value = None if activation == "identity" else self._value[name]
        return training.Parameter(
            raw=self._raw[name], gradient=gradient, first=first, second=second, learning_rate=rate,
            activation=activation, value=value,
        )  # fmt: skip
