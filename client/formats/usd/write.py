"""Writes Gaussians as USD: one prim of the type ParticleField3DGaussianSplat."""

from __future__ import annotations

import errno
import tempfile
import zipfile
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.scene import SRGB, StoredScene
from lumigrad.client.formats.source import malformed
from lumigrad.client.formats.usd.layers import pxr
from lumigrad.client.values.affine import matrices_of_quats, unit_quats

# A zipped file's offsets are 32 bits.
_LARGEST_PACKAGE = (1 << 32) - (1 << 20)


def write_usd(scene: StoredScene, path: str | PathLike[str], *, up_axis: str | None = None) -> None:
    """Writes text (.usda), binary (.usd, .usdc) or a package (.usdz) with one prim, in float32.

    Args:
        scene: the scene; its axes are kept, as trainers' exporters do.
        path: the file.
        up_axis: the up axis that the stage states, "Y" or "Z"; None: that of the USD file which the scene is from, else
            "Y". Nothing is rotated.
    """
    if up_axis is None:
        # Stages may state another axis, which OpenUSD does not allow.
        up_axis = "Z" if scene.details.get("up_axis") == "Z" else "Y"
    if up_axis not in ("Y", "Z"):
        raise malformed(path, f'expected up_axis "Y" or "Z", got {up_axis!r}')
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise malformed(path, "expected a path in UTF-8, which OpenUSD needs; choose another name") from None
    suffix = Path(path).suffix.lower()
    layer = _layer(scene, ".usda" if suffix == ".usda" else ".usdc", up_axis)
    if suffix != ".usdz":
        with replaced(path) as new:
            _exported(layer, new)
        return
    with tempfile.TemporaryDirectory() as folder:
        inner = Path(folder, "scene.usdc")
        _exported(layer, inner)
        if inner.stat().st_size > _LARGEST_PACKAGE:
            raise malformed(path, "expected less than 4 GiB, the limit of a .usdz file; write a .usdc file")
        asset = pxr("Sdf", "writing USD files").AssetPath(str(inner))
        with replaced(path) as new:
            is_written = pxr("UsdUtils", "writing USD files").CreateNewUsdzPackage(asset, str(new))
            # OpenUSD does not notice that a disk is full.
            _check(is_written and _is_whole(new), new)


def _exported(layer: Any, path: Path) -> None:
    try:
        is_written = layer.Export(str(path))
    except pxr("Tf", "writing USD files").ErrorException:
        is_written = False
    _check(is_written, path)


def _is_whole(package: Path) -> bool:
    try:
        with zipfile.ZipFile(package) as file:
            return file.testzip() is None
    except (zipfile.BadZipFile, EOFError):
        return False


def _check(is_written: bool, path: Path) -> None:
    """Raises OSError unless OpenUSD has written a file; it does not say why not."""
    if not is_written:
        raise OSError(errno.EIO, "OpenUSD could not write the file; is the disk full?", str(path))


def _layer(scene: StoredScene, suffix: str, up_axis: str) -> Any:
    """Returns a layer with one prim in a transform."""
    sdf, usd, geometry, volumes, vt = (
        pxr(name, "writing USD files") for name in ("Sdf", "Usd", "UsdGeom", "UsdVol", "Vt")
    )
    layer = sdf.Layer.CreateAnonymous(suffix)
    stage = usd.Stage.Open(layer)
    geometry.SetStageUpAxis(stage, up_axis)
    geometry.SetStageMetersPerUnit(stage, scene.details.get("meters_per_unit", 1.0))
    world = geometry.Xform.Define(stage, "/World")
    stage.SetDefaultPrim(world.GetPrim())
    field = volumes.ParticleField3DGaussianSplat.Define(stage, "/World/gaussians")
    vectors = vt.Vec3fArray.FromNumpy
    field.CreatePositionsAttr(vectors(np.ascontiguousarray(scene.means)))
    quats = unit_quats(scene.quats)[:, [1, 2, 3, 0]].astype(np.float32)
    field.CreateOrientationsAttr(vt.QuatfArray.FromNumpy(np.ascontiguousarray(quats)))
    field.CreateScalesAttr(vectors(np.ascontiguousarray(scene.scales)))
    field.CreateOpacitiesAttr(vt.FloatArray.FromNumpy(np.ascontiguousarray(scene.opacities)))
    field.CreateRadianceSphericalHarmonicsDegreeAttr(scene.degree)
    coefficients = vectors(np.ascontiguousarray(scene.sh.reshape(-1, 3)))
    field.CreateRadianceSphericalHarmonicsCoefficientsAttr(coefficients).SetMetadata("elementSize", scene.sh.shape[1])
    field.CreateSortingModeHintAttr(scene.drawing_order)
    field.CreateExtentAttr(vectors(_extent(scene)))
    name = SRGB if scene.color_space == SRGB else "lin_rec709_scene"
    usd.ColorSpaceAPI.Apply(field.GetPrim()).CreateColorSpaceNameAttr(name)
    return layer


def _extent(scene: StoredScene) -> Float32:
    """Returns the lower and the upper corner [2, 3] of the box around three standard deviations."""
    axes = matrices_of_quats(scene.quats) * scene.scales[:, None, :]
    reach = 3.0 * np.linalg.norm(axes, axis=2)
    return np.asarray([(scene.means - reach).min(axis=0), (scene.means + reach).max(axis=0)], np.float32)
