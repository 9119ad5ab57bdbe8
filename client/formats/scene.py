"""What every reader returns and every writer takes: Gaussians as arrays, and how they were trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np
import numpy.typing as npt

from lumigrad.client.arrays import Float32
from lumigrad.client.formats.activation import sh_from_colors
from lumigrad.client.formats.quaternions import unit_quats
from lumigrad.client.formats.source import malformed
from lumigrad.client.gaussians import Gaussians

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StoredScene:
    """The content of a scene file after activation, in the file's order of Gaussians.

    Attributes:
        means: [N, 3] float32, scene units, axes as in Inria's files: x right, y down, z forward.
        quats: [N, 4] float32 (w, x, y, z), of any length.
        scales: [N, 3] float32, standard deviations in scene units.
        opacities: [N] float32 in [0, 1].
        sh: [N, K, 3] float32 coefficients of spherical harmonics, K = 1, 4, 9, 16 or 25.
        antialiased: trained with antialiasing, and so best rendered with it.
        skipped: how many Gaussians of the file were left out, see `keep`.
    """

    means: Float32
    quats: Float32
    scales: Float32
    opacities: Float32
    sh: Float32
    antialiased: bool = False
    skipped: int = 0

    @staticmethod
    def of(gaussians: Gaussians, path: str | PathLike[str], *, antialiased: bool = False) -> StoredScene:
        """What is to be written; InvalidArgument for Gaussians that no format can hold."""
        if gaussians.quats is None or gaussians.scales is None:
            raise malformed(path, "expected Gaussians with quats and scales; covariances cannot be stored")
        sh = sh_from_colors(gaussians.colors) if gaussians.colors is not None else gaussians.sh
        if gaussians.means.ndim != 2 or sh is None or sh.ndim != 3 or sh.shape[2] != 3:
            raise malformed(
                path,
                f"expected one scene with 3 colour channels, got means {list(gaussians.means.shape)} "
                f"and {gaussians.channels} channels; save scenes one by one, and other channels with numpy.savez",
            )
        return StoredScene(gaussians.means, gaussians.quats, gaussians.scales, gaussians.opacities, sh, antialiased)

    def __len__(self) -> int:
        return len(self.means)

    @property
    def degree(self) -> int:
        """Of the spherical harmonics, 0 to 4."""
        return math.isqrt(self.sh.shape[1]) - 1

    def gaussians(self) -> Gaussians:
        """The value type, with quaternions of length 1; a quaternion of length 0 stands for no rotation."""
        return Gaussians(self.means, unit_quats(self.quats), self.scales, self.opacities, sh=self.sh)

    def invalid(self) -> dict[str, Mask]:
        """By name of the attribute a mask [N] of the Gaussians that cannot be rendered; only those where there are any.

        Those are what is not finite, and negative scales. Files of trainings that went wrong have some.
        """
        names = ("means", "quats", "scales", "opacities", "sh")
        valid = {name: np.isfinite(getattr(self, name)) for name in names}
        valid["scales"] &= self.scales >= 0
        masks = {name: ~flags.reshape(len(self), flags[:1].size).all(axis=1) for name, flags in valid.items()}
        return {name: mask for name, mask in masks.items() if mask.any()}

    def keep(self, mask: Mask) -> StoredScene:
        """The Gaussians for which a mask [N] is true."""
        return replace(
            self,
            means=self.means[mask],
            quats=self.quats[mask],
            scales=self.scales[mask],
            opacities=self.opacities[mask],
            sh=self.sh[mask],
            skipped=self.skipped + int((~mask).sum()),
        )
