"""Gaussians as a value: one scene, or several of equal size. File formats are in `formats`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np

from lumigrad.client.base.arguments import whole_number
from lumigrad.client.base.arrays import Float32, Tensors, float32_array, to_numpy
from lumigrad.client.base.cautions import warn_of, warn_of_bytes
from lumigrad.client.base.precision import lost_by, median_of
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.values.affine import Affine

# Spherical harmonics coefficients per channel for degrees 0 to 4.
SH_COEFFICIENTS = (1, 4, 9, 16, 25)


@dataclass(frozen=True, eq=False, init=False)
class Gaussians(Tensors):
    """N Gaussians in the world frame. Anything array-like is accepted and kept as read-only float32.

    A leading axis S on every array means S scenes of N Gaussians each; a rendering then takes S * C cameras, beginning
    with those of the first scene. Contiguous float32 arrays are not copied, so do not change them afterwards.

    Attributes:
        means: [N, 3] or [S, N, 3] centres, scene units.
        quats: [.., N, 4] rotations (w, x, y, z), of any length (0: no rotation); None with `covariances`.
        scales: [.., N, 3] standard deviations along the rotated axes, scene units, >= 0; or [.., N, 2] for surfels,
            which get a third scale of 0; None with `covariances`.
        opacities: [.., N] in [0, 1].
        sh: [.., N, K, D] spherical harmonics coefficients, K = 1, 4, 9, 16 or 25, of D channels; None with `colors`.
        colors: [.., N, D] channels, instead of `sh`; or per camera [C, N, D], with S scenes [S, C, N, D].
        covariances: [.., N, 6] instead of `quats` and `scales`: xx xy xz yy yz zz, scene units squared.

    Example:
        one = Gaussians([[0, 0, 0]], [[1, 0, 0, 0]], [[0.1, 0.1, 0.1]], opacities=[0.9], colors=[[1, 0, 0]])
    """

    means: Float32
    quats: Float32 | None
    scales: Float32 | None
    opacities: Float32
    sh: Float32 | None = None
    colors: Float32 | None = None
    covariances: Float32 | None = None

    def __init__(
        self,
        means: Any,
        quats: Any = None,
        scales: Any = None,
        opacities: Any = None,
        sh: Any = None,
        colors: Any = None,
        covariances: Any = None,
    ) -> None:
        places = to_numpy("means", means)
        means = float32_array("means", places, ("S", "N", 3) if places.ndim == 3 else ("N", 3))
        leading = means.shape[:-1]
        if opacities is None:
            raise InvalidArgument.of("opacities", f"expected shape {list(leading)}, got none")
        _check_alternatives(quats, scales, covariances, sh, colors)
        vars(self).update(
            means=means,
            quats=_optional("quats", quats, (*leading, 4)),
            scales=_optional("scales", _three(scales), (*leading, 3)),
            covariances=_optional("covariances", covariances, (*leading, 6)),
            opacities=float32_array("opacities", opacities, leading),
            sh=_optional("sh", sh, (*leading, "K", "D")),
            colors=None if colors is None else _colors(colors, leading),
        )
        self._check_values()
        warn_of("means", lost_by(places, 0.0 if self.scales is None else median_of(self.scales)))

    def __len__(self) -> int:
        """Returns the number of Gaussians of all scenes together."""
        return int(self.opacities.size)

    def __repr__(self) -> str:
        scenes = "" if self.scenes is None else f"{self.scenes} scenes of "
        shape = "covariances" if self.scales is None else "scales"
        degree = "" if self.sh is None else f" of degree {self.sh_degree}"
        return f"Gaussians({scenes}{self.means.shape[-2]} Gaussians, {shape}, {self.channels} channels{degree})"

    @property
    def scenes(self) -> int | None:
        """S, the number of scenes; None without a leading axis."""
        return self.means.shape[0] if self.means.ndim == 3 else None

    @property
    def is_flat(self) -> bool:
        """Whether all third scales are 0, as for surfels; false if there are no Gaussians."""
        return self.scales is not None and len(self) > 0 and not self.scales[..., 2].any()

    @cached_property
    def channels(self) -> int:
        """D, the number of colour channels."""
        array = self.colors if self.sh is None else self.sh
        assert array is not None
        return int(array.shape[-1])

    @property
    def sh_degree(self) -> int | None:
        """The degree of the stored spherical harmonics; None with `colors`."""
        return None if self.sh is None else SH_COEFFICIENTS.index(self.sh.shape[-2])

    def __getitem__(self, rows: Any) -> Gaussians:
        """Returns some of the Gaussians of a single scene.

        Args:
            rows: a slice, a mask [N], or indices [M] in any order.

        Raises:
            InvalidArgument: this is not a single scene, or there are no such rows.

        Example:
            opaque = gaussians[gaussians.opacities > 0.5]
        """
        self._check_is_one("rows")
        wanted = rows if isinstance(rows, slice) else to_numpy("rows", rows)
        if not isinstance(wanted, slice) and wanted.shape == (0,):
            # NumPy makes an empty list an array of floats.
            wanted = wanted.astype(np.int64)
        try:
            is_list = np.arange(len(self))[wanted].ndim == 1
        except (IndexError, TypeError) as error:
            raise InvalidArgument.of("rows", f"expected a slice, a mask or numbers: {error}") from error
        if not is_list:
            raise InvalidArgument.of("rows", "expected a slice, a mask [N] or numbers [M]; [3:4] is one Gaussian")
        return Gaussians(**{name: array[_index(name, array, wanted)] for name, array in self.tensors.items()})

    @staticmethod
    def concatenate(scenes: Sequence[Gaussians]) -> Gaussians:
        """Concatenates the Gaussians of several scenes, with spherical harmonics of the highest degree among them.

        Args:
            scenes: at least one; all with scales or all with covariances, and all with sh or all with colors.

        Raises:
            InvalidArgument: the scenes do not have the same kinds of arrays.

        Example:
            both = Gaussians.concatenate([gaussians, gaussians.transformed(np.diag([0.5, 0.5, 0.5, 1.0]))])
        """
        if not scenes:
            raise InvalidArgument.of("scenes", "expected at least one, got none")
        for scene in scenes:
            scene._check_is_one("scenes")
        degrees = [scene.sh_degree for scene in scenes if scene.sh_degree is not None]
        whole = [scene if scene.sh is None else scene.with_sh_degree(max(degrees)) for scene in scenes]
        kinds = [{name: array.shape[1:] for name, array in scene.tensors.items()} for scene in whole]
        for kind in kinds:
            if kind != kinds[0] or len(kind.get("colors", ())) == 2:
                text = f"expected scenes with the same arrays, and no colors per camera, got {kinds[0]} and {kind}"
                raise InvalidArgument.of("scenes", text)
        return Gaussians(**{name: np.concatenate([scene.tensors[name] for scene in whole]) for name in kinds[0]})

    def transformed(self, matrix: Any) -> Gaussians:
        """Applies an affine map M of the world to the scene: means M x, covariances M C M^T.

        Spherical harmonics are rotated by the rotation in the polar decomposition of M.

        Args:
            matrix: [4, 4] or [3, 4], for column vectors; any affine map that does not mirror.

        Raises:
            InvalidArgument: the matrix mirrors, flattens or is not finite, or this is not a single scene.

        Example:
            upright = gaussians.transformed(np.diag([1.0, -1.0, -1.0, 1.0]))
        """
        self._check_is_one("matrix")
        found = to_numpy("matrix", matrix)
        if found.shape not in ((4, 4), (3, 4)):
            raise InvalidArgument.of("matrix", f"expected shape [4, 4] or [3, 4], got {list(found.shape)}")
        if len(found) == 4 and not np.array_equal(found[3], (0.0, 0.0, 0.0, 1.0)):
            text = f"expected a last row 0, 0, 0, 1, for column vectors, got {found[3].tolist()}"
            raise InvalidArgument.of("matrix", text)
        affine = Affine.of(found.astype(np.float64), lambda text: InvalidArgument.of("matrix", text))
        arrays = {**self.tensors, "means": affine.means(self.means)}
        if self.covariances is not None:
            arrays["covariances"] = affine.covariances(self.covariances)
        else:
            assert self.quats is not None and self.scales is not None
            arrays["quats"], arrays["scales"] = affine.shapes(self.quats, self.scales)
        if self.sh is not None:
            arrays["sh"] = affine.harmonics(self.sh)
        return Gaussians(**arrays)

    def with_sh_degree(self, degree: int) -> Gaussians:
        """Returns the scene with spherical harmonics of another degree, cut off or padded with 0.

        Args:
            degree: 0 to 4.

        Raises:
            InvalidArgument: the degree is out of range, or the scene has `colors`.

        Example:
            matte = Gaussians.load("sample:vase").with_sh_degree(0)
        """
        whole_number("degree", degree, 0, len(SH_COEFFICIENTS) - 1)
        if self.sh is None:
            raise InvalidArgument.of("degree", "expected a scene with sh, got one with colors")
        return Gaussians(**{**self.tensors, "sh": sh_of_degree(self.sh, degree)})

    @staticmethod
    def load(path: str | PathLike[str]) -> Gaussians:
        """Reads a file of any supported format, see `lumigrad.client.formats`; activates scales and opacities.

        Args:
            path: the file, or "sample:vase".

        Raises:
            InvalidArgument: the file is damaged or of another kind; the text names the file and the invalid part.
            MissingPackage: the format needs a package that is not installed; the text names the extra that has it.

        Example:
            gaussians = Gaussians.load("sample:vase")
        """
        from lumigrad.client.formats import load_gaussians

        return load_gaussians(path)

    def save(self, path: str | PathLike[str]) -> None:
        """Writes a file in the format of its suffix, see `lumigrad.client.formats`.

        Args:
            path: the file.

        Raises:
            InvalidArgument: the suffix is unknown, or the format cannot hold these Gaussians.

        Example:
            gaussians.save(folder / "scene.ply")
        """
        from lumigrad.client.formats import save_gaussians

        save_gaussians(self, path)

    def _check_is_one(self, argument: str) -> None:
        if self.scenes is not None:
            raise InvalidArgument.of(
                argument, f"expected one scene, got {self.scenes}; make Gaussians of each one's arrays"
            )

    def _check_values(self) -> None:
        opacities, scales = self.opacities, self.scales
        for name, values in (("opacities", opacities), ("scales", scales)):
            if values is not None and (count := int(np.isnan(values).sum())):
                raise InvalidArgument.of(name, f"expected finite values, {count} of {values.size} are NaN")
        if not ((opacities >= 0) & (opacities <= 1)).all():
            raise InvalidArgument.of(
                "opacities",
                f"expected values in [0, 1], got {opacities.min()} to {opacities.max()}; apply the sigmoid to logits",
            )
        if scales is not None and not (scales >= 0).all():
            raise InvalidArgument.of(
                "scales", f"expected values >= 0, the smallest is {scales.min()}; apply exp to logarithms"
            )
        if self.sh is not None and (self.sh.shape[-2] not in SH_COEFFICIENTS or not self.channels):
            raise InvalidArgument.of(
                "sh", f"expected shape [.., N, K, D] with K = 1, 4, 9, 16 or 25 and D >= 1, got {list(self.sh.shape)}"
            )
        if self.colors is not None and not self.channels:
            raise InvalidArgument.of("colors", f"expected at least one channel, got shape {list(self.colors.shape)}")


def _index(name: str, array: Float32, rows: Any) -> Any:
    """Returns the index of Gaussians in an array; only colours per camera have an axis before that of Gaussians."""
    return (slice(None), rows) if name == "colors" and array.ndim == 3 else rows


def sh_of_degree(sh: Float32, degree: int) -> Float32:
    """Returns coefficients [.., K, D] of another degree, cut off or padded with 0."""
    wanted = SH_COEFFICIENTS[degree]
    found = np.zeros((*sh.shape[:-2], wanted, sh.shape[-1]), np.float32)
    kept = min(wanted, sh.shape[-2])
    found[..., :kept, :] = sh[..., :kept, :]
    return found


def _check_alternatives(quats: Any, scales: Any, covariances: Any, sh: Any, colors: Any) -> None:
    if covariances is None and (quats is None or scales is None):
        missing = "quats" if quats is None else "scales"
        raise InvalidArgument.of(missing, "expected quats and scales, or covariances instead of both, got none")
    if covariances is not None and not (quats is None and scales is None):
        raise InvalidArgument.of("covariances", "expected either covariances or quats and scales, got both")
    if (sh is None) == (colors is None):
        raise InvalidArgument.of("sh", f"expected either sh or colors, got {'neither' if sh is None else 'both'}")


def _three(scales: Any) -> Any:
    """Pads scales [.., N, 2] with 0 to [.., N, 3]; returns other values unchanged."""
    if scales is None or not 2 <= (array := to_numpy("scales", scales)).ndim <= 3 or array.shape[-1] != 2:
        return scales
    return np.pad(array, ((0, 0),) * (array.ndim - 1) + ((0, 1),))


def _optional(name: str, value: Any, shape: Sequence[int | str]) -> Float32 | None:
    return None if value is None else float32_array(name, value, shape)


def _colors(value: Any, leading: tuple[int, ...]) -> Float32:
    """Returns colours as float32 [.., N, D], or with an axis of cameras before N."""
    colors = to_numpy("colors", value)
    warn_of_bytes("colors", colors)
    cameras = ("C",) if colors.ndim == len(leading) + 2 else ()
    return float32_array("colors", colors, (*leading[:-1], *cameras, leading[-1], "D"))
