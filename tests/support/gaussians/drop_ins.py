"""Runs the cases of the oracle's files on the drop-ins for Gaussians, called like the originals."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lumigrad.client.compat.diff_gaussian_rasterization import GaussianRasterizationSettings, GaussianRasterizer
from lumigrad.client.compat.gsplat import rasterization
from support.gaussians.case import Doubles

VARIABLE = "LUMIGRAD_TEST_DATA"
ABSENT = f"set {VARIABLE} to the folder that holds oracle/gaussians/*.npz to compare with double precision"


def files(pattern: str) -> list[Path]:
    """The oracle's files of a kind, "g*" or "i*"; none where the variable is not set."""
    folder = os.environ.get(VARIABLE)
    return sorted(Path(folder, "oracle", "gaussians").glob(f"{pattern}.npz")) if folder else []


@dataclass(frozen=True)
class Archive:
    """An oracle file: its options, and its arrays."""

    options: dict[str, Any]
    arrays: dict[str, Any]

    @staticmethod
    def load(path: Path) -> Archive:
        """Reads a file."""
        with np.load(path) as archive:
            arrays = {name: archive[name] for name in archive.files}
        return Archive(json.loads(str(arrays.pop("options_json"))), arrays)

    def leaves(self) -> dict[str, torch.Tensor]:
        """The inputs, each with a gradient."""
        names = [name for name in self.arrays if name.startswith("in_")]
        return {name[3:]: torch.from_numpy(self.arrays[name].copy()).requires_grad_() for name in names}

    def weighted(self, image: torch.Tensor, name: str) -> torch.Tensor:
        """The term of the loss for an output."""
        return (image * torch.from_numpy(self.arrays[f"v_{name}"]).reshape(image.shape)).sum()


@dataclass(frozen=True)
class Dropped:
    """The results, by the names in the file."""

    images: dict[str, Doubles]
    gradients: dict[str, Doubles]
    radii: np.ndarray


def gradients_of(leaves: dict[str, torch.Tensor]) -> dict[str, Doubles]:
    """The gradients of leaves; 0 where there is none."""
    return {
        name: np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.double().numpy() for name, leaf in leaves.items()
    }


def run_gsplat(archive: Archive, target: str, *, packed: bool) -> Dropped:
    """Runs a file of gsplat's kind."""
    options, leaves = archive.options, archive.leaves()
    color, alpha, meta = rasterization(
        *(leaves[name] for name in ("means", "quats", "scales", "opacities", "colors", "viewmats", "Ks")),
        options["width"], options["height"], near_plane=options["near"], far_plane=options["far"],
        radius_clip=options["radius_clip"], eps2d=options["eps2d"], sh_degree=options["sh_degree"], packed=packed,
        backgrounds=leaves.get("backgrounds"), render_mode=options["mode"], absgrad=True,
        rasterize_mode="antialiased" if options["antialiased"] else "classic", camera_model=options["model"],
        covars=leaves.get("covars"), target=target,
    )  # fmt: skip
    meta["means2d"].retain_grad()
    (archive.weighted(color, "image") + archive.weighted(alpha, "alpha")).backward()

    def dense(values: torch.Tensor) -> np.ndarray:
        if not packed:
            return values.detach().numpy()
        whole = torch.zeros(archive.arrays["radii"].shape, dtype=values.dtype)
        whole[meta["camera_ids"], meta["gaussian_ids"]] = values.detach()
        return whole.numpy()

    gradients = gradients_of(leaves)
    gradients["means2d_px"] = dense(meta["means2d"].grad).astype(np.float64)
    gradients["absgrad"] = dense(meta["means2d"].absgrad).astype(np.float64)
    images = {"image": color.detach().numpy(), "alpha": alpha.detach().numpy(), "means2d": dense(meta["means2d"])}
    return Dropped(images, gradients, dense(meta["radii"]))


def run_inria(archive: Archive, target: str, semantics: str) -> Dropped:
    """Runs a file of Inria's kind."""
    options, leaves = archive.options, archive.leaves()
    settings = GaussianRasterizationSettings(
        image_height=options["height"], image_width=options["width"], tanfovx=options["tan_fovx"],
        tanfovy=options["tan_fovy"], bg=leaves["background"], scale_modifier=options["scale_modifier"],
        viewmatrix=leaves["viewmatrix"], projmatrix=leaves["projmatrix_f64"], sh_degree=options["sh_degree"] or 0,
        campos=leaves["campos"], prefiltered=False, debug=False, antialiasing=options["antialiasing"] or None,
    )  # fmt: skip
    leaves["means2D"] = torch.zeros(len(leaves["means3D"]), 3, requires_grad=True)
    scene = ("means3D", "means2D", "opacities", "shs", "colors_precomp", "scales", "rotations", "cov3D_precomp")
    arguments = {name: leaves.get(name) for name in scene}
    rasterizer = partial(GaussianRasterizer, settings, target, semantics=semantics)  # type: ignore[arg-type]
    images = {}
    if options["antialiasing"]:
        images["invdepth"] = rasterizer()(**arguments)[2]
        color, radii, depth, alpha = rasterizer(alpha=True)(**arguments)
        images |= {"color": color, "depth": depth, "finalT": 1 - alpha}
    else:
        color, radii, depth = rasterizer()(**arguments)
        images |= {"color": color, "depth": depth[:1], "finalT": depth[1:]}
    loss = sum(
        archive.weighted(image if name in ("color", "invdepth") else image[0], name) for name, image in images.items()
    )
    loss.backward()
    return Dropped(
        {name: image.detach().numpy() for name, image in images.items()}, gradients_of(leaves), radii.numpy()
    )
