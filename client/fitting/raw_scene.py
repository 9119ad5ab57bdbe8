"""What an optimiser changes of a scene, in this process: logarithms of sizes, logits of opacities."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lumigrad.client.fitting.adam import Adam
from lumigrad.client.formats.activation import logarithms_of_scales, logits_of_opacities
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.named_arrays import Array
from lumigrad.client.spheres import Spheres

_SIZES = ("scales", "radii")
# Each step's own rate for what makes up the harmonics.
_HARMONICS = "sh0", "sh_rest"


@dataclass
class RawScene:
    """Raw tensors by the names of the scene's, and Adam's moments of them.

    Attributes:
        kind: "gaussians" or "spheres".
        tensors: float32, changed in place by steps.
        moments: of each tensor.
    """

    kind: str
    tensors: dict[str, Array]
    moments: dict[str, Adam]

    @staticmethod
    def of(scene: Gaussians | Spheres) -> RawScene:
        """What stands for the scene."""
        tensors = {name: _raw(name, array).copy() for name, array in scene.tensors.items()}
        kind = "gaussians" if isinstance(scene, Gaussians) else "spheres"
        return RawScene(kind, tensors, {name: Adam.of(tensor) for name, tensor in tensors.items()})

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def scene(self) -> Gaussians | Spheres:
        """What it stands for, a copy."""
        values = {name: self.value(name).copy() for name in self.tensors}
        return Gaussians(**values) if self.kind == "gaussians" else Spheres(**values)

    def value(self, name: str) -> Array:
        """A tensor as the scene has it."""
        raw = self.tensors[name]
        if name in _SIZES:
            return np.exp(raw)
        if name == "opacities":
            return np.asarray(1 / (1 + np.exp(-raw)), np.float32)
        return raw

    def step(self, gradients: Mapping[str, Array], rates: Mapping[str, float]) -> None:
        """Makes a step of Adam.

        Args:
            gradients: by the scene's own values.
            rates: by tensor, but for "sh" those of "sh0" and "sh_rest". Tensors without one stay as they are.
        """
        for name, gradient in gradients.items():
            rate: float | Array
            if name == "sh":
                rate = np.full((self.tensors[name].shape[1], 1), rates[_HARMONICS[1]], np.float32)
                rate[0] = rates[_HARMONICS[0]]
            else:
                rate = rates.get(name, 0.0)
            self.moments[name].step(self.tensors[name], gradient * self._slope(name), rate)

    def _slope(self, name: str) -> Array | float:
        """Of the scene's values by the raw ones."""
        if name in _SIZES:
            return self.value(name)
        if name == "opacities":
            opacities = self.value(name)
            return np.asarray(opacities * (1 - opacities), np.float32)
        return 1.0


def _raw(name: str, array: Array) -> Array:
    if name in _SIZES:
        return logarithms_of_scales(array)
    return logits_of_opacities(array) if name == "opacities" else array
