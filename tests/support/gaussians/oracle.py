"""Gaussian cases that another program computed in double precision, from the folder named by LUMIGRAD_TEST_DATA."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from support.gaussians.case import Doubles, Floats, GaussianCase, InriaView, OpenCVView, Options

MODELS = {"pinhole": "pinhole", "ortho": "orthographic", "fisheye": "fisheye"}
GSPLAT_GRADIENTS = {
    "grad_means": "means",
    "grad_quats": "quats",
    "grad_scales": "scales",
    "grad_opacities": "opacities",
    "grad_viewmats": "viewmats",
    "grad_backgrounds": "background",
    "grad_pose6": "camera_pose",
    "grad_means2d_px": "means2d",
    "absgrad_means2d_px": "means2d_abs",
}
INRIA_GRADIENTS = {
    "means3D": "means",
    "rotations": "quats",
    "scales": "scales",
    "cov3D_precomp": "covariances",
    "opacities": "opacities",
    "shs": "sh",
    "colors_precomp": "colors",
    "background": "background",
    "campos": "camera_position",
}


@dataclass(frozen=True)
class OracleCase:
    """A file: the case, the gradients of its outputs, and the expected results by the names of the protocol.

    `fork_gradients` are those of the depth fork, where the file has them. `radii` [C, N, 2].
    """

    case: GaussianCase
    upstream: dict[str, Floats]
    images: dict[str, Doubles]
    radii: NDArray[np.int32]
    means2d: Doubles
    stable: NDArray[np.bool_]
    gradients: dict[str, Doubles]
    fork_gradients: dict[str, Doubles]


def load(path: Path) -> OracleCase:
    """Reads one file."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    options = json.loads(str(arrays.pop("options_json")))
    return (
        _gsplat(path.stem, arrays, options) if options["convention"] == "gsplat" else _inria(path.stem, arrays, options)
    )


def _six(matrices: Doubles, off_diagonal: float) -> Doubles:
    rows, columns = np.triu_indices(3)
    return np.ascontiguousarray(matrices[..., rows, columns] * np.where(rows == columns, 1.0, off_diagonal))


def _gsplat_options(options: Mapping[str, Any]) -> Options:
    names = ("sh_degree", "antialiased", "eps2d", "near", "far", "radius_clip")
    return Options(semantics="gsplat", **{name: options[name] for name in names})


def _gsplat(name: str, arrays: dict[str, Any], options: Mapping[str, Any]) -> OracleCase:
    views = tuple(
        OpenCVView(
            np.array([k[0, 0], k[1, 1], k[0, 2], k[1, 2]], np.float64),
            view[:3, :3].astype(np.float64),
            view[:3, 3].astype(np.float64),
            MODELS[options["model"]],
        )
        for view, k in zip(arrays["in_viewmats"], arrays["in_Ks"], strict=True)
    )
    harmonic = options["sh_degree"] is not None
    features = "sh" if harmonic else "colors"
    tensors = {"means": arrays["in_means"], "opacities": arrays["in_opacities"], features: arrays["in_colors"]}
    gradients = {ours: arrays[theirs] for theirs, ours in GSPLAT_GRADIENTS.items() if theirs in arrays}
    gradients[features] = arrays["grad_colors"]
    if "in_covars" in arrays:
        tensors["covariances"] = _six(arrays["in_covars"], 1.0)
        gradients["covariances"] = _six(arrays["grad_covars"], 2.0)
    else:
        tensors |= {"quats": arrays["in_quats"], "scales": arrays["in_scales"]}
    gradients["camera_rotation"] = gradients["viewmats"][:, :3, :3]
    gradients["camera_translation"] = gradients.pop("viewmats")[:, :3, 3]
    case = GaussianCase(
        name=name, cameras=views, width=options["width"], height=options["height"],
        background=arrays.get("in_backgrounds"), options=_gsplat_options(options), **tensors,
    )  # fmt: skip
    planes, mode = {}, options["mode"]
    channels = arrays["out_image"].shape[-1]
    if mode.startswith("RGB"):
        planes["color"] = slice(0, channels - (mode != "RGB"))
    if mode != "RGB":
        planes["expected_depth" if mode.endswith("ED") else "depth"] = channels - 1
    images = {key: arrays["out_image"][..., plane] for key, plane in planes.items()}
    upstream = {key: arrays["v_image"][..., plane] for key, plane in planes.items()}
    return OracleCase(
        case=case, upstream=upstream | {"alpha": arrays["v_alpha"][..., 0]},
        images=images | {"alpha": arrays["out_alpha"][..., 0], "contributors": arrays["n_contrib"]},
        radii=arrays["radii"], means2d=arrays["means2d"], stable=arrays["stable"],
        gradients=gradients, fork_gradients={},
    )  # fmt: skip


def _inria(name: str, arrays: dict[str, Any], options: Mapping[str, Any]) -> OracleCase:
    width, height = options["width"], options["height"]
    view = InriaView(
        arrays["in_viewmatrix"].astype(np.float64),
        arrays["in_projmatrix_f64"],
        arrays["in_campos"].astype(np.float64),
        options["tan_fovx"],
        options["tan_fovy"],
    )
    tensors = {ours: arrays[f"in_{theirs}"] for theirs, ours in INRIA_GRADIENTS.items() if f"in_{theirs}" in arrays}
    tensors.pop("camera_position")
    tensors["opacities"] = tensors["opacities"][:, 0]
    case = GaussianCase(
        name=name,
        cameras=(view,),
        width=width,
        height=height,
        options=Options(
            semantics="inria_exact",
            sh_degree=options["sh_degree"],
            antialiased=options["antialiasing"],
            near=0.2,
            pixel_center=0.0,
            scale_modifier=options["scale_modifier"],
        ),
        **tensors,
    )

    def gradients(kind: str) -> dict[str, Doubles]:
        found = {ours: arrays[f"{kind}_{key}"] for key, ours in INRIA_GRADIENTS.items() if f"{kind}_{key}" in arrays}
        if found:
            found["opacities"] = found["opacities"][:, 0]
            found["means2d"] = arrays[f"{kind}_means2D"][None] / np.array([width / 2, height / 2])
        if "camera_position" in found:
            found["camera_position"] = found["camera_position"][None]
        return found

    planes = {"color": "color", "depth": "depth", "finalT": "transmittance"}
    planes |= {"invdepth": "inverse_depth"} if options["antialiasing"] else {}

    def image(kind: str, theirs: str, ours: str) -> Any:
        values = np.moveaxis(arrays[f"{kind}_{theirs}"], 0, -1)
        return np.ascontiguousarray(values if ours == "color" else values[..., 0])[None]

    return OracleCase(
        case=case,
        upstream={ours: image("v", theirs, ours) for theirs, ours in planes.items()},
        images={ours: image("out", theirs, ours) for theirs, ours in planes.items()}
        | {"alpha": image("out", "alpha", "alpha"), "contributors": arrays["n_contrib"][None]},
        radii=np.repeat(arrays["radii"][None, :, None], 2, -1),
        means2d=arrays["means2d"][None],
        stable=arrays["stable"][None],
        gradients=gradients("grad"),
        fork_gradients=gradients("gradcompat"),
    )
