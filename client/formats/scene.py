"""The content of files of Gaussians: activations, quaternion order, axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.base.arrays import Float32, Float64
from lumigrad.client.base.cautions import said
from lumigrad.client.base.precision import lost_by, median_of
from lumigrad.client.formats.source import malformed
from lumigrad.client.values.affine import unit_quats
from lumigrad.client.values.gaussians import Gaussians, sh_of_degree

# The constant spherical harmonic, 1 / (2 sqrt(pi)).
SH_0 = 0.28209479177387814
# sigmoid(20) is 1 in float32; an opacity of 0 comes back as 2e-9.
_LARGEST_LOGIT = 20.0

Array = npt.NDArray[Any]


def scales_from_logarithms(logarithms: Array) -> Float32:
    """Returns the scales, exp of their logarithms."""
    return np.exp(logarithms.astype(np.float64)).astype(np.float32)


def logarithms_of_scales(scales: Array) -> Float32:
    """Returns natural logarithms; 0 counts as the smallest normal float32."""
    smallest = float(np.finfo(np.float32).tiny)
    return np.log(np.maximum(scales.astype(np.float64), smallest)).astype(np.float32)


def opacities_from_logits(logits: Array) -> Float32:
    """Returns the opacities, sigmoid of their logits."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits.astype(np.float64))), np.float32)


def logits_of_opacities(opacities: Array) -> Float32:
    """Returns the logits of opacities, the inverse of sigmoid, between -20 and 20."""
    wide = opacities.astype(np.float64)
    with np.errstate(divide="ignore"):
        logits = np.log(wide) - np.log1p(-wide)
    return np.asarray(np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT), np.float32)


def sh_from_colors(colors: Array) -> Float32:
    """Returns [N, 1, D], the coefficients of degree 0 for colours [N, D]."""
    return np.asarray((colors.astype(np.float64) - 0.5) / SH_0, np.float32)[:, None]


def colors_of_sh(sh: Array) -> Float32:
    """Returns [N, D], the colours of the degree 0 coefficients in [N, K, D]; they may lie outside [0, 1]."""
    return np.asarray(0.5 + SH_0 * sh[:, 0].astype(np.float64), np.float32)


def to_bytes(fractions: Array) -> npt.NDArray[np.uint8]:
    """Maps 0..1 to 0..255, rounded; values outside are clipped."""
    return np.rint(np.clip(fractions, 0.0, 1.0) * 255.0).astype(np.uint8)


def from_smallest_three(largest: Array, others: Array) -> Float32:
    """Returns unit quaternions [N, 4] in the file's order of components, the largest one positive.

    Args:
        largest: [N] the omitted component, 0 to 3.
        others: [N, 3] the other components in order.
    """
    rows = np.arange(len(others))
    # Row k has the places of the three others if component k is omitted.
    places = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])[largest]
    wide = others.astype(np.float64)
    quats = np.zeros((len(others), 4))
    quats[rows[:, None], places] = wide
    quats[rows, largest] = np.sqrt(np.maximum(0.0, 1.0 - np.square(wide).sum(axis=1)))
    return quats.astype(np.float32)


def smallest_three(quats: Float64) -> tuple[Array, Float64]:
    """Returns the arguments of `from_smallest_three` for unit quaternions [N, 4] in the file's order."""
    rows = np.arange(len(quats))
    largest = np.abs(quats).argmax(axis=1)
    # q and -q are the same rotation.
    positive = quats * np.where(quats[rows, largest] < 0, -1.0, 1.0)[:, None]
    others = positive[np.arange(4)[None] != largest[:, None]].reshape(len(quats), 3)
    return largest, others


Mask = npt.NDArray[np.bool_]
TENSORS = ("means", "quats", "scales", "opacities", "sh")
# Colour spaces as glTF and USD name them: as displayed, and linear light of the same primaries.
SRGB, LINEAR = "srgb_rec709_display", "lin_rec709_display"
# Drawing orders as glTF and USD name them; Lumigrad treats the last one as the distance of the centre.
BY_DEPTH, BY_DISTANCE, BY_HIT = "zDepth", "cameraDistance", "rayHitDistance"


@dataclass(frozen=True)
class StoredScene:
    """The content of a scene file after activation, in the file's order of Gaussians.

    Attributes:
        means: [N, 3] float32, scene units, axes as in Inria's files: x right, y down, z forward.
        quats: [N, 4] float32 (w, x, y, z), of any length.
        scales: [N, 3] float32, standard deviations in scene units.
        opacities: [N] float32 in [0, 1].
        sh: [N, K, 3] float32 coefficients of spherical harmonics, K = 1, 4, 9, 16 or 25.
        antialiased: whether it was trained with antialiasing, so that it should be rendered with it.
        skipped: number of Gaussians that were left out, see `keep`.
        color_space: "srgb_rec709_display", or "lin_rec709_display" if blended colours are linear light, which has to be
            encoded before it is shown.
        details: other facts that the file states, by name, e.g. its format's version, and `sorting` for
            `drawing_order`.
    """

    means: Float32
    quats: Float32
    scales: Float32
    opacities: Float32
    sh: Float32
    antialiased: bool = False
    skipped: int = 0
    color_space: str = SRGB
    details: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(gaussians: Gaussians, path: str | PathLike[str], *, antialiased: bool = False) -> StoredScene:
        """Converts Gaussians for writing; raises InvalidArgument for those that no format can store.

        Args:
            gaussians: one scene with quats and scales and 3 colour channels.
            path: the file to write, for errors.
            antialiased: whether it was trained with antialiasing.

        Raises:
            InvalidArgument: no format can store these Gaussians.

        Example:
            stored = StoredScene.of(gaussians, folder / "scene.ply")
        """
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
    def drawing_order(self) -> str:
        """Quantity that Gaussians are sorted by: "zDepth", "cameraDistance" or "rayHitDistance".

        Files that say nothing, and files with several orders, are drawn by depth.
        """
        stated = self.details.get("sorting")
        return str(stated) if stated in (BY_DISTANCE, BY_HIT) else BY_DEPTH

    @property
    def is_flat(self) -> bool:
        """Whether all third scales are 0: these are surfels. False if there are no Gaussians."""
        return len(self) > 0 and not self.scales[:, 2].any()

    @cached_property
    def lost(self) -> str:
        """The effect of float32 on positions this far from 0, as a sentence; empty if its steps are fine enough."""
        return lost_by(self.means, median_of(self.scales))

    @property
    def degree(self) -> int:
        """The degree of the spherical harmonics, 0 to 4."""
        return math.isqrt(self.sh.shape[1]) - 1

    def gaussians(self) -> Gaussians:
        """Converts to `Gaussians` with unit quaternions; length 0 becomes no rotation."""
        with said():
            return Gaussians(self.means, unit_quats(self.quats), self.scales, self.opacities, sh=self.sh)

    def invalid(self) -> dict[str, Mask]:
        """Returns masks [N] of Gaussians that cannot be rendered, by attribute; attributes without any are omitted.

        Nonfinite values, negative scales, and opacities outside [0, 1] are invalid; failed trainings produce them.
        """
        valid = {name: np.isfinite(getattr(self, name)) for name in TENSORS}
        valid["scales"] &= self.scales >= 0
        valid["opacities"] &= (self.opacities >= 0) & (self.opacities <= 1)
        masks = {name: ~flags.reshape(len(self), flags[:1].size).all(axis=1) for name, flags in valid.items()}
        return {name: mask for name, mask in masks.items() if mask.any()}

    def keep(self, mask: Mask) -> StoredScene:
        """Returns the Gaussians for which a mask [N] is true."""
        return replace(self.reordered(mask), skipped=self.skipped + int((~mask).sum()))

    def reordered(self, indices: npt.NDArray[Any] | slice) -> StoredScene:
        """Returns the Gaussians of these indices."""
        return replace(self, **{name: getattr(self, name)[indices] for name in TENSORS})

    def of_degree(self, degree: int) -> StoredScene:
        """Returns the scene with the harmonics of one degree; higher ones are cut, missing ones are 0."""
        return replace(self, sh=sh_of_degree(self.sh, degree))


def joined(scenes: Sequence[StoredScene]) -> StoredScene:
    """Returns the Gaussians of at least one scene, one after the other, with harmonics of the highest degree.

    All else is the first scene's, except that the result is antialiased only if all scenes are.
    """
    if len(scenes) == 1:
        return scenes[0]
    degree = max(scene.degree for scene in scenes)
    whole = [scene if scene.degree == degree else scene.of_degree(degree) for scene in scenes]
    tensors: dict[str, Any] = {name: np.concatenate([getattr(scene, name) for scene in whole]) for name in TENSORS}
    return replace(scenes[0], **tensors, antialiased=all(scene.antialiased for scene in scenes))


# The axes in which each harmonic up to degree 4 is odd: it changes sign if an odd number of these is flipped.
_ODD_AXES = (
    *("", "y", "z", "x"),
    *("xy", "yz", "", "xz", ""),
    *("y", "xyz", "y", "z", "x", "z", "x"),
    *("xy", "yz", "xy", "yz", "", "xz", "", "xz", ""),
)


def flipped(scene: StoredScene, signs: tuple[int, int, int]) -> StoredScene:
    """Returns the scene with x, y and z multiplied by `signs`, each 1 or -1.

    A rotation R becomes F R F: each component of its quaternion's vector part, an axis, is multiplied by the two other
    signs. The covariance of each Gaussian is then exactly F Σ F.
    """
    x, y, z = signs
    sign = dict(zip("xyz", signs, strict=True))
    parity = [int(np.prod([sign[axis] for axis in axes])) for axes in _ODD_AXES[: scene.sh.shape[1]]]
    return replace(
        scene,
        means=_signed(scene.means, signs),
        quats=_signed(scene.quats, (1, y * z, x * z, x * y)),
        sh=_signed(scene.sh, [[sign] for sign in parity]),
    )


def _signed(values: Float32, signs: Any) -> Float32:
    # Adding 0 removes negative zeros.
    return np.asarray(values * np.array(signs, np.float32) + np.float32(0))
