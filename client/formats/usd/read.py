"""Reads Gaussians from USD: prims of the type ParticleField3DGaussianSplat of the schema UsdVol."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats.placement import placed
from lumigrad.client.formats.scene import LINEAR, SRGB, StoredScene, joined
from lumigrad.client.formats.source import check_growth, malformed
from lumigrad.client.formats.usd.layers import checked, open_stage, pxr

_SPACES = {
    SRGB: SRGB,
    "srgb_rec709_scene": SRGB,
    LINEAR: LINEAR,
    "lin_rec709_scene": LINEAR,
}
_LARGEST_DEGREE = 4
_DEGREE = "radiance:sphericalHarmonicsDegree"
_COEFFICIENTS = "radiance:sphericalHarmonicsCoefficients"
_MOST_PRIMS = 1_000_000
# The purposes of prims that are not for final pictures.
_STAND_INS = ("proxy", "guide")
# The shape of each element.
_WIDTHS: dict[str, tuple[int, ...]] = {
    "positions": (3,),
    "orientations": (4,),
    "scales": (3,),
    "opacities": (),
    _COEFFICIENTS: (3,),
}
# The longest element, a quaternion.
_BYTES_PER_ROW = 16


def read_usd(path: Path) -> StoredScene:
    """Reads a .usd, .usda, .usdc or .usdz file: all visible Gaussians at the default time, in the stage's axes.

    The axes and the unit are in `details`; numbers are left as they are.
    """
    with checked(path):
        return _read(path)


def _read(path: Path) -> StoredScene:
    stage, stored_bytes = open_stage(path)
    geometry = pxr("UsdGeom", "reading USD files")
    transforms = geometry.XformCache(pxr("Usd", "reading USD files").TimeCode.Default())
    scenes, total, sorting = [], 0, set()
    for prim in _particle_fields(path, stage):
        reader = _Prim(path, prim)
        total += reader.decoded_bytes()
        check_growth(path, stored_bytes, total)
        # Matrices of USD are for row vectors.
        matrix = np.array(transforms.GetLocalToWorldTransform(prim)).T
        scenes.append(placed(reader.read(), matrix, reader.fail))
        sorting.add(str(prim.GetAttribute("sortingModeHint").Get()))
    if not scenes:
        raise malformed(path, f"expected prims of the type ParticleField3DGaussianSplat, got none{_hint(stage)}")
    if len({scene.color_space for scene in scenes}) > 1:
        raise malformed(path, "expected one colour space for all Gaussians, got sRGB and linear ones")
    details: dict[str, Any] = {"format": "USD", "sorting": ", ".join(sorted(sorting))}
    details["up_axis"] = str(geometry.GetStageUpAxis(stage))
    details["meters_per_unit"] = float(geometry.GetStageMetersPerUnit(stage))
    if not geometry.StageHasAuthoredMetersPerUnit(stage):
        details["unit_is_default"] = True
    return replace(joined(scenes), details=details)


def _particle_fields(path: Path, stage: Any) -> Iterator[Any]:
    """Yields the visible prims of Gaussian ellipsoids in the order of the stage, without stand-ins.

    Raises:
        InvalidArgument: other kernels; names them.
    """
    usd, geometry, volumes = (pxr(name, "reading USD files") for name in ("Usd", "UsdGeom", "UsdVol"))
    predicate = usd.TraverseInstanceProxies(usd.PrimDefaultPredicate)
    stand_ins = 0
    for number, prim in enumerate(usd.PrimRange.Stage(stage, predicate)):
        if number == _MOST_PRIMS:
            raise malformed(path, f"expected at most {_MOST_PRIMS:,} prims")
        if not prim.IsA(volumes.ParticleField):
            continue
        if geometry.Imageable(prim).ComputeVisibility() == geometry.Tokens.invisible:
            continue
        # Stand-ins for what is rendered would be drawn twice.
        if geometry.Imageable(prim).ComputePurpose() in _STAND_INS:
            stand_ins += 1
            continue
        if not prim.HasAPI(volumes.ParticleFieldKernelGaussianEllipsoidAPI):
            kernels = [name for name in prim.GetAppliedSchemas() if "Kernel" in name and "Base" not in name]
            raise malformed(
                path,
                f"expected Gaussian ellipsoids at {prim.GetPath()}, got {', '.join(kernels) or 'no kernel'}, "
                "which is not supported",
            )
        yield prim
    if stand_ins:
        text = f"Gaussians of the purposes {' and '.join(_STAND_INS)} are left out: {stand_ins} prims"
        warn_caller(f"{path}: {text}")


def _hint(stage: Any) -> str:
    volume = pxr("UsdVol", "reading USD files").Volume
    if any(prim.IsA(volume) for prim in stage.Traverse()):
        return "; volumes, as in the .usdz files of NuRec, are not supported"
    return ""


@dataclass(frozen=True)
class _Prim:
    """One ParticleField3DGaussianSplat."""

    path: Path
    prim: Any

    def fail(self, description: str) -> InvalidArgument:
        """Returns an error that names the file and the prim."""
        return malformed(self.path, f"{self.prim.GetPath()}: {description}")

    def decoded_bytes(self) -> int:
        """Returns the prim's size in memory; refuses value clips, instancers and time-varying transforms."""
        geometry, above = pxr("UsdGeom", "reading USD files"), self.prim
        while above and not above.IsPseudoRoot():
            if above.HasAuthoredMetadata("clips"):
                raise self.fail(f"expected no value clips, which are not supported, at {above.GetPath()}")
            if above.IsA(geometry.PointInstancer):
                raise self.fail(f"expected no PointInstancer, which is not supported, at {above.GetPath()}")
            if geometry.Xformable(above) and geometry.Xformable(above).TransformMightBeTimeVarying():
                raise self.fail(f"expected no time samples in the transform of {above.GetPath()}")
            above = above.GetParent()
        return sum(_BYTES_PER_ROW * len(value) for value in map(self._value, _WIDTHS) if value is not None)

    def read(self) -> StoredScene:
        """Reads the Gaussians in the prim's frame."""
        means = self._array("positions")
        count = 0 if means is None else len(means)
        degree = self.prim.GetAttribute(_DEGREE).Get()
        if not isinstance(degree, int) or not 0 <= degree <= _LARGEST_DEGREE:
            raise self.fail(f"expected {_DEGREE} 0 to {_LARGEST_DEGREE}, got {degree!r}")
        coefficients = (degree + 1) ** 2
        quats = self._rows("orientations", count)
        # Arrays of quaternions are x y z w in NumPy.
        quats = np.tile(np.array([1, 0, 0, 0], np.float32), (count, 1)) if quats is None else quats[:, [3, 0, 1, 2]]
        scales, opacities = self._rows("scales", count), self._rows("opacities", count)
        higher = self._rows(_COEFFICIENTS, count * coefficients)
        # Colours without coefficients are grey, 0.5.
        sh = np.zeros((count, 1, 3), np.float32) if higher is None else higher.reshape(count, coefficients, 3)
        return StoredScene(
            means=np.zeros((0, 3), np.float32) if means is None else means,
            quats=quats,
            scales=np.ones((count, 3), np.float32) if scales is None else scales,
            opacities=np.ones(count, np.float32) if opacities is None else opacities,
            sh=sh,
            color_space=self._color_space(),
        )

    def _rows(self, name: str, count: int) -> Float32 | None:
        """Returns `count` rows; longer arrays are cut, shorter ones ignored, as the schema says."""
        values = self._array(name)
        if values is None or len(values) == count:
            return values
        ignored = len(values) < count
        warnings.warn(
            f"{self.path}: {self.prim.GetPath()}: expected {count:,} {name}, got {len(values):,}; "
            + ("they are ignored" if ignored else "the last ones are cut"),
            stacklevel=2,
        )
        return None if ignored else values[:count]

    def _array(self, name: str) -> Float32 | None:
        """Returns the values of an attribute; None without any."""
        value = self._value(name)
        if value is None:
            return None
        array = np.array(value)
        if array.shape != (len(value), *_WIDTHS[name]) or array.dtype.kind != "f":
            raise self.fail(f"expected floats of the schema's type in {name}, got an array of shape {array.shape}")
        return np.asarray(array, np.float32)

    def _value(self, name: str) -> Any:
        """Returns OpenUSD's array in single precision, else in half; None without any."""
        for full in (name, f"{name}h"):
            attribute = self.prim.GetAttribute(full)
            if attribute.GetNumTimeSamples():
                raise self.fail(f"expected one value of {full}, but it has time samples, which are not supported")
            value = attribute.Get()
            if value is not None and not hasattr(value, "__len__"):
                raise self.fail(f"expected an array in {full}, got {type(value).__name__}")
            if value is not None:
                return value
        return None

    def _color_space(self) -> str:
        api, above = pxr("Usd", "reading USD files").ColorSpaceAPI, self.prim
        while above and not above.IsPseudoRoot():
            if above.HasAPI(api):
                name = str(api(above).GetColorSpaceNameAttr().Get())
                if name not in _SPACES:
                    raise self.fail(f"expected the colour space {' or '.join(_SPACES)}, got {name}")
                return _SPACES[name]
            above = above.GetParent()
        return SRGB
