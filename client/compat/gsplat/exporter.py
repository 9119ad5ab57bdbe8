"""gsplat's files of scenes (`gsplat.exporter`): parameters before activation, as trainers hold them."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import check_shape
from lumigrad.client.base.replacing import replaced
from lumigrad.client.compat.gsplat.options import GsplatArgumentError, gsplat_refusals
from lumigrad.client.formats.compressed_ply import write_compressed_ply
from lumigrad.client.formats.inria_ply import look_columns
from lumigrad.client.formats.ply_header import PlyHeader, write_vertices
from lumigrad.client.formats.scene import StoredScene, opacities_from_logits, scales_from_logarithms
from lumigrad.client.formats.splat import write_splat

_WRITERS = {"splat": write_splat, "ply_compressed": write_compressed_ply}


def export_splats(
    means: torch.Tensor,
    scales: torch.Tensor,
    quats: torch.Tensor,
    opacities: torch.Tensor,
    sh0: torch.Tensor,
    shN: torch.Tensor,
    format: Literal["ply", "splat", "ply_compressed"] = "ply",
    save_to: str | PathLike[str] | None = None,
) -> bytes:
    """Returns a scene as the bytes of a file; Gaussians with values that are not finite are left out.

    Args:
        means: [N, 3] centres, scene units.
        scales: [N, 3] logarithms of standard deviations.
        quats: [N, 4] rotations (w, x, y, z), of any length.
        opacities: [N] logits.
        sh0: [N, 1, 3] constant coefficients of spherical harmonics.
        shN: [N, K - 1, 3] the other coefficients.
        format: "ply" keeps all bits, "splat" and "ply_compressed" round (docs/formats.md).
        save_to: a file to write the bytes to, too.

    Raises:
        GsplatArgumentError: a shape or the format is invalid, or the format cannot store an empty scene.

    Example:
        export_splats(means, scales, quats, opacities, sh0, shN, save_to="scene.ply")
    """
    tensors = {"means": means, "scales": scales, "quats": quats, "opacities": opacities, "sh0": sh0, "shN": shN}
    with gsplat_refusals():
        one_of("format", format, ("ply", *_WRITERS))
        shapes = {"means": (3,), "scales": (3,), "quats": (4,), "opacities": (), "sh0": (1, 3), "shN": ("K", 3)}
        for name, shape in shapes.items():
            check_shape(name, tensors[name].shape, (len(means), *shape))
    arrays = {name: tensor.detach().float().cpu().numpy() for name, tensor in tensors.items()}
    finite = [np.isfinite(array).all(axis=tuple(range(1, array.ndim))) for array in arrays.values()]
    arrays = {name: array[np.logical_and.reduce(finite)] for name, array in arrays.items()}
    if format == "ply_compressed" and not len(arrays["means"]):
        text = 'expected at least one Gaussian of finite values with format="ply_compressed", got none'
        raise GsplatArgumentError.of("means", f'{text}; pass format="ply", which can store empty scenes')
    with TemporaryDirectory() as folder:
        path = Path(folder, "scene")
        sh = np.concatenate([arrays["sh0"], arrays["shN"]], axis=1)
        if format == "ply":
            looks = look_columns(sh, arrays["opacities"], arrays["scales"], arrays["quats"])
            write_vertices(path, dict(zip("xyz", arrays["means"].T, strict=True)) | looks)
        else:
            scene = StoredScene(
                arrays["means"], arrays["quats"], scales_from_logarithms(arrays["scales"]),
                opacities_from_logits(arrays["opacities"]), sh,
            )  # fmt: skip
            _WRITERS[format](scene, path)
        found = path.read_bytes()
    if save_to is not None:
        with replaced(Path(save_to)) as new:
            new.write_bytes(found)
    return found


def load_ply_to_splats(path: str | PathLike[str]) -> dict[str, torch.Tensor]:
    """Reads a PLY file of Gaussians as float32 tensors on the CPU, before activation.

    Args:
        path: the file.

    Returns:
        "means" [N, 3], "scales" [N, 3] logarithms, "quats" [N, 4] as stored, "opacities" [N] logits, "sh0" [N, 1, 3]
        and "shN" [N, K - 1, 3].

    Raises:
        InvalidArgument: the file is damaged, or holds something else.

    Example:
        splats = load_ply_to_splats("scene.ply")
    """
    header = PlyHeader.read(path)
    table = header.table("vertex")

    def columns(*names: str) -> torch.Tensor:
        missing = [name for name in names if name not in header.vertex_properties]
        if missing:
            raise header.fail(f"expected the vertex property {missing[0]}, which Gaussians have; got none")
        return torch.from_numpy(np.stack([np.asarray(table[name], np.float32) for name in names], axis=-1))

    rest = sum(name.startswith("f_rest_") for name in header.vertex_properties)
    if rest % 3:
        raise header.fail(f"expected 3 channels of harmonics, got {rest} properties f_rest_")
    scales = [f"scale_{axis}" for axis in range(3) if f"scale_{axis}" in header.vertex_properties]
    means = columns("x", "y", "z")
    higher = columns(*(f"f_rest_{k}" for k in range(rest))) if rest else means.new_zeros(len(means), 0)
    return {
        "means": means,
        "scales": columns(*(scales or ["scale_0"])),
        "quats": columns(*(f"rot_{k}" for k in range(4))),
        "opacities": columns("opacity")[:, 0],
        "sh0": columns(*(f"f_dc_{k}" for k in range(3)))[:, None],
        "shN": higher.reshape(len(means), 3, rest // 3).transpose(1, 2).contiguous(),
    }
