"""Times of the Gaussian kernels in this process: forward as a trainer calls it, and backward; and of a plain copy."""

from __future__ import annotations

import numpy as np
import torch

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, State, backward, forward
from tests.benchmarks.gaussian_scene import DISTANCE, Scene, output_gradient
from tests.benchmarks.measure import Measured, measure

SEMANTICS = "exact"


class KernelBenchmark:
    """A scene on a film of one size; forward keeps what backward needs, as in training."""

    def __init__(self, case: str, scene: Scene, views: int = 1) -> None:
        """Each view is moved sideways by a hundredth of the distance."""
        self._case = case
        self._settings = Settings()
        self.gaussians = Gaussians(**{name: torch.from_numpy(value) for name, value in scene.tensors.items()})
        aside = np.array([0.01 * DISTANCE, 0.0, 0.0], np.float32)
        self.cameras = [
            Camera.opencv(
                *scene.intrinsics, scene.rotation, scene.translation + view * aside, scene.width, scene.height
            )
            for view in range(views)
        ]
        gradient = torch.from_numpy(output_gradient(scene.width, scene.height))
        self._upstream = {"color": gradient.repeat(views, 1, 1, 1)}

    def run(self) -> list[Measured]:
        """Measures forward, then backward on the state of a forward pass just before it, as in training."""
        forward_times = measure(self._case, "forward", SEMANTICS, self.forward)
        state = self.state()
        return [forward_times, measure(self._case, "backward", SEMANTICS, lambda: self.backward(state))]

    def state(self) -> State:
        """The state of one forward pass."""
        state = forward(self.gaussians, self.cameras, self._settings, retain=True).state
        assert state is not None
        return state

    def forward(self) -> float:
        """Milliseconds in the kernel's stages."""
        return sum(forward(self.gaussians, self.cameras, self._settings, retain=True).stages().values())

    def backward(self, state: State) -> float:
        """Milliseconds in the kernel's stages, for gradients of every tensor of the scene."""
        return sum(backward(state, self._upstream).stages().values())


def memory_copy() -> Measured:
    """Copies 64 MiB with as many threads as torch has: the limit of the memory bandwidth."""
    source = torch.from_numpy(np.ones(1 << 24, np.float32))
    target = torch.empty_like(source)

    def call() -> float:
        target.copy_(source)
        return 0.0

    return measure("64 MiB", "memory_copy", "none", call, seconds=0.5)
