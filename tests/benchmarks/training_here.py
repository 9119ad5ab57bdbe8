"""The steps of the training benchmark that are made in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

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

    def __init__(
        self, scene: Gaussians, camera: Camera, photograph: Bytes, client: Client, loss: Loss | None = None
    ) -> None:
        """The default of `loss` is L1 and D-SSIM."""
        # Seconds of the parts of all steps.
        self.parts: Counter[str] = Counter()
        self._client, self._loss = client, loss or Loss()
        vars(client)["_rendered"] = self._rendered(client._rendered)
        self._camera = camera
        self._target_image = torch.tensor(photograph)[None] / 255
        self._raw = {name: value.requires_grad_() for name, value in _raw(scene).items()}
        groups = [{"params": [self._raw[name]], "lr": rate} for name, rate in RATES.items()]
        self._optimizer = torch.optim.Adam(groups, eps=1e-15, fused=True)

    def step(self) -> None:
        """Makes one step."""
        raw, view, lens = self._raw, self._camera.view_matrix, self._camera.K
        start = time.perf_counter()
        picture = render_gaussians(
            raw["means"], raw["quats"], raw["scales"].exp(), raw["opacities"].sigmoid(), raw["sh"],
            torch.tensor(view)[None], torch.tensor(lens)[None], width=self._camera.width, height=self._camera.height,
            sh_degree=3, outputs=("color",), client=self._client,
        ).color  # fmt: skip
        self._optimizer.zero_grad()
        torch.autograd.backward(loss_of(self._loss, picture, self._target_image))
        stepped = time.perf_counter()
        self._optimizer.step()
        end = time.perf_counter()
        self.parts += Counter(step=end - start, optimizer=end - stepped)  # type: ignore[call-overload]

    def _rendered(self, render: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps rendering to record the parts of each call and of its backward pass."""

        def rendered(*arguments: Any) -> Any:
            frame = self._noted(("parameters_up", "render", "image_down"), lambda: render(*arguments))
            backward = frame.backward
            names = "gradient_up", "backward", "gradients_down"
            vars(frame)["backward"] = lambda **options: self._noted(names, lambda: backward(**options))
            return frame

        return rendered

    def _noted(self, names: tuple[str, str, str], call: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        result = call()
        timings, seconds = result.timings, time.perf_counter() - start
        stages = Counter(timings.stages)
        # A request in shared memory is written before it is sent.
        up = 1e3 * seconds - timings.round_trip_ms + stages["decode"] + stages["upload"]
        down = stages["download"] + stages["encode"]
        for name, milliseconds in zip(names, (up, timings.kernel_ms, down), strict=True):
            self.parts[name] += 1e-3 * milliseconds  # type: ignore[assignment]
        self.parts["calls"] += seconds  # type: ignore[assignment]
        return result


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
        """Makes one step."""
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
