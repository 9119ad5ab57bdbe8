"""Cases that the original renderers computed, from the folder named by LUMIGRAD_TEST_DATA outside the repository."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from support.spheres.case import Expected, Floats, SphereCase

VARIABLE = "LUMIGRAD_TEST_DATA"
ABSENT = f"set {VARIABLE} to the folder that holds oracle/*/*.npz to compare with what was computed elsewhere"
NO_LIMIT = 4294967295
# Names of gradients in the files, and in the contract; the last four are the original's camera vectors.
GRADIENTS = {
    "grad_pos": "positions",
    "grad_col": "colors",
    "grad_rad": "radii",
    "grad_opacity": "opacities",
    "grad_cam_params": "cameras",
    "grad_cam_pos_vec": "eye",
    "grad_pixel_0_0_center": "pixel_0_0_center",
    "grad_pixel_vec_x": "pixel_vec_x",
    "grad_pixel_vec_y": "pixel_vec_y",
}


@dataclass(frozen=True)
class OracleCase:
    """One batch element of a file: the case and its expected results."""

    case: SphereCase
    expected: Expected
    # The index in the batch, and whether the file holds a batch.
    element: int
    batched: bool
    # The caller's value; in the case, 0 is replaced as in the original.
    min_depth: float


def files(kind: str = "spheres") -> list[Path]:
    """The case files of one engine; empty where the data is absent."""
    root = os.environ.get(VARIABLE)
    return sorted(Path(root, "oracle", kind).glob("*.npz")) if root else []


def load(path: Path) -> list[OracleCase]:
    """All batch elements of a file."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    settings = json.loads(str(arrays.pop("meta_json")))
    batched = arrays["pos"].ndim == 3
    count = len(arrays["pos"]) if batched else 1
    nearest = settings["min_depth"]
    if not nearest:
        # The original replaces 0 by the largest focal length of the whole batch.
        nearest = float(np.float32(arrays["cam_focal_length"].max()) + np.float32(2) * np.float32(1e-6))
    elements = []
    for index in range(count):
        own = {name: value[index] if batched and name != "bg_col" else value for name, value in arrays.items()}
        elements.append(_element(path.stem, own, settings, index, batched, nearest if batched else None))
    return elements


def _element(
    name: str, arrays: dict[str, Floats], settings: dict[str, object], index: int, batched: bool, nearest: float | None
) -> OracleCase:
    options: dict[str, object] = {
        "gamma": settings["gamma"],
        "max_depth": settings["max_depth"],
        "min_depth": settings["min_depth"] if nearest is None else nearest,
        "orthogonal": settings["orthogonal_projection"],
        "right_handed": settings["right_handed_system"],
        "first_r_then_t": settings["first_R_then_T"],
        "n_track": settings["n_track"],
        "background_depth": settings["background_normalized_depth"],
        "allowed_difference": settings["percent_allowed_difference"],
        "max_hits": 0 if settings["max_n_hits"] == NO_LIMIT else settings["max_n_hits"],
        "hits_only": settings["mode"] == 1,
    }
    height, width = arrays["image"].shape[:2]
    channels = arrays["col"].shape[1]
    case = SphereCase(
        name=f"{name}[{index}]" if batched else name,
        positions=arrays["pos"],
        colors=arrays["col"],
        radii=arrays["rad"],
        camera=arrays["cam_params"],
        width=width,
        height=height,
        background=arrays["bg_col"] if settings["bg_col_given"] else np.ones(channels, np.float32),
        output_gradient=arrays.get("grad_image", np.zeros((height, width, channels), np.float32)),
        opacities=arrays.get("opacity"),
        **options,  # type: ignore[arg-type]
    )
    return OracleCase(case, _expected(arrays, case), index, batched, float(settings["min_depth"]))  # type: ignore[arg-type]


def _expected(arrays: dict[str, Floats], case: SphereCase) -> Expected:
    if case.hits_only:
        return Expected(hits=arrays["image"][..., 0].astype(np.int32))
    gradients = {ours: arrays[theirs] for theirs, ours in GRADIENTS.items() if theirs in arrays}
    return Expected(image=arrays["image"], info=arrays["info"], gradients=gradients)
