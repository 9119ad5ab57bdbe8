"""Times of the sphere kernels in this process: forward as a trainer calls it, and backward."""

from __future__ import annotations

import torch

from lumigrad.kernels.spheres import Camera, Settings, State, backward, forward
from tests.benchmarks.measure import Measured, measure
from tests.benchmarks.scene import CAMERA, GAMMA, MAX_DEPTH, N_TRACK, Scene, output_gradient

WANTED = ("positions", "colors", "radii", "cameras")


class KernelBenchmark:
    """A scene on a film of one size; forward keeps what backward needs, as in training."""

    def __init__(self, case: str, scene: Scene, width: int, height: int, semantics: str) -> None:
        self._case, self._semantics = case, semantics
        self._inputs = [torch.from_numpy(values) for values in (scene.positions, scene.colors, scene.radii)]
        self._cameras = [Camera.pulsar(CAMERA, width, height)]
        self._settings = Settings(GAMMA, MAX_DEPTH, semantics=semantics, n_track=N_TRACK)
        self._upstream = {"color": torch.from_numpy(output_gradient(width, height))[None]}

    def run(self) -> list[Measured]:
        """Measures forward, then backward on the state of a forward pass just before it, as in training."""
        forward_times = measure(self._case, "forward", self._semantics, self._forward)
        state = self._state()
        return [forward_times, measure(self._case, "backward", self._semantics, lambda: self._backward(state))]

    def _state(self) -> State:
        state = forward(*self._inputs, self._cameras, self._settings, retain=True).state
        assert state is not None
        return state

    def _forward(self) -> float:
        return sum(forward(*self._inputs, self._cameras, self._settings, retain=True).stages().values())

    def _backward(self, state: State) -> float:
        return sum(backward(state, self._upstream, WANTED).stages().values())
