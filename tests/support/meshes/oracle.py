"""Reads mesh cases that other programs computed in double precision, from files outside the repository."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from support.closeness import assert_image
from support.meshes.case import Doubles, MeshCase, MeshShape, Options, Placed
from support.rotations import rotation

SEMANTICS = {"static": "curobo", "swept": "curobo", "esdf": "curobo_field"}


@dataclass(frozen=True)
class Found:
    """A case with its expected results, and where these do not depend on rounding.

    `distances` [B, H, S, I] are another library's, positive outside, of the instances of the case; `differences` is
    the gradient [B, H, S, 4] of the plain sum of the costs by central differences, where it was computed.
    """

    case: MeshCase
    cost: Doubles
    gradient: Doubles
    ok_cost: NDArray[np.bool_]
    ok_gradient: NDArray[np.bool_]
    distances: Doubles
    differences: Doubles | None


def assert_reproduced(found: Found, cost: Doubles, gradient: Doubles) -> None:
    """Asserts that costs and gradients are the expected ones where these do not depend on rounding."""
    weight, largest = found.case.options.weight, float(np.abs(found.cost).max())
    ok = found.ok_cost
    assert_image(cost[ok], found.cost[ok], 1e-5 * weight + 1e-4 * largest)
    ok, expected = found.ok_gradient, found.gradient
    # Errors are relative to a row's own length if it exceeds that of a plain cost.
    size = np.maximum(np.linalg.norm(expected, axis=-1, keepdims=True), weight)
    assert_image(gradient[ok], expected[ok], 2e-3 * np.broadcast_to(size, expected.shape)[ok])


def inverse(pose: Doubles) -> tuple[float, ...]:
    """The inverse of a pose x, y, z, qw, qx, qy, qz."""
    position = -rotation(pose[3:7]).T @ pose[:3]
    return (*position.tolist(), pose[3], -pose[4], -pose[5], -pose[6])


def load(path: Path) -> Found:
    """Reads one file."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    shapes = [
        MeshShape(arrays[f"V{index}"].astype(np.float64), arrays[f"F{index}"])
        for index in range(len(arrays["mesh_names"]))
    ]
    sign = "rays" if str(arrays["ref_sign"]) == "rays3" else "auto"
    slots = arrays["mesh_idx"]
    placed, distances = [], []
    for environment, slot in np.ndindex(*slots.shape):
        if slots[environment, slot] < 0 or slot >= arrays["n_env_mesh"][environment]:
            continue
        placed.append(
            Placed(
                shape=shapes[slots[environment, slot]],
                pose=inverse(arrays["mesh_pose_inverse"][environment, slot, :7].astype(np.float64)),
                enabled=bool(arrays["mesh_enable"][environment, slot] == 1),
                environment=environment,
                sign=sign,
            )
        )
        distances.append(arrays["o3d_sd"][environment, slot])
    swept = str(arrays["kind"]) == "swept"
    options = Options(
        semantics=SEMANTICS[str(arrays["kind"])], activation_distance=float(arrays["activation_distance"]),
        max_distance=float(arrays["max_dist"]), sweep=swept and int(arrays["sweep_steps"]) > 0,
        samples=int(arrays["sweep_steps"]), speed_metric=swept and bool(arrays["enable_speed_metric"]),
        time_step_s=float(arrays["speed_dt"]), weight=float(arrays["weight"]),
    )  # fmt: skip
    case = MeshCase(
        name=path.stem, placed=tuple(placed), spheres=arrays["spheres"], environments=len(slots),
        rows=arrays.get("env_query_idx"), options=options,
    )  # fmt: skip
    return Found(
        case=case, cost=arrays["ref_cost"], gradient=arrays["ref_grad"], ok_cost=arrays["ref_ok_cost"],
        ok_gradient=arrays["ref_ok_grad"], distances=np.stack(distances, -1), differences=arrays.get("fd_grad"),
    )  # fmt: skip
