"""Gaussians in .splat files: 32 bytes each, without header, with the base colour as the only harmonic."""

from __future__ import annotations

from os import PathLike

import numpy as np

from lumigrad.client.base.replacing import replaced
from lumigrad.client.formats.scene import StoredScene, colors_of_sh, sh_from_colors, to_bytes
from lumigrad.client.formats.source import Source
from lumigrad.client.values.affine import unit_quats

_RECORD = np.dtype([("mean", "<f4", 3), ("scale", "<f4", 3), ("rgba", "u1", 4), ("quat", "u1", 4)])


def read_splat(source: Source) -> StoredScene:
    """Reads all records."""
    if not len(source) or len(source) % _RECORD.itemsize:
        raise source.fail(
            f"expected a .splat file, a multiple of {_RECORD.itemsize} bytes long, got {len(source):,} bytes"
        )
    records = source.array(_RECORD, (len(source) // _RECORD.itemsize,), 0, "records")
    levels = records["rgba"].astype(np.float64) / 255.0
    return StoredScene(
        means=records["mean"].copy(),
        quats=(records["quat"].astype(np.float32) - 128.0) / 128.0,
        scales=records["scale"].copy(),
        opacities=levels[:, 3].astype(np.float32),
        sh=sh_from_colors(levels[:, :3]),
        details={"format": "splat"},
    )


def write_splat(scene: StoredScene, path: str | PathLike[str]) -> None:
    """Writes the base colours, clipped to 0..1, opacities and rotations in 8 bits; higher harmonics are lost."""
    records = np.empty(len(scene), _RECORD)
    records["mean"], records["scale"] = scene.means, scene.scales
    records["rgba"][:, :3] = to_bytes(colors_of_sh(scene.sh))
    records["rgba"][:, 3] = to_bytes(scene.opacities)
    records["quat"] = np.clip(np.rint(unit_quats(scene.quats) * 128.0 + 128.0), 0, 255).astype(np.uint8)
    with replaced(path) as new:
        new.write_bytes(records.tobytes())
