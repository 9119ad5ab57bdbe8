"""Scenes of Gaussians that were not made by this project, if LUMIGRAD_TEST_DATA has them.

Captures are larger and overlap more than the standard scene.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from tests.benchmarks.gaussian_scene import DEGREE, Floats, Scene

# Files of each scene, in the folder LUMIGRAD_TEST_DATA.
GARDEN = ("scenes/gsplat_garden/garden.npz",)
FITTED = ("scenes/fitted_plush/plush.spz", "scenes/capture_plush/transforms.json")
WIDTH = 1920
# The garden is cut to a cube around 0, and its copies are this far apart; scene units.
_HALF, _APART = 2.0, 4.0
_SMALLEST, _LARGEST = 1e-4, 0.02
# The value of the harmonic of degree 0.
_CONSTANT = 0.28209479


class NoSuchScene(Exception):
    """A scene's files are not in the folder LUMIGRAD_TEST_DATA."""


def paths_of(files: tuple[str, ...]) -> list[Path]:
    """The paths of a scene's files; raises NoSuchScene if one is missing."""
    found = [Path(os.environ.get("LUMIGRAD_TEST_DATA", ""), file) for file in files]
    missing = [file for file, path in zip(files, found, strict=True) if not path.is_file()]
    if missing:
        raise NoSuchScene(f"no {' and no '.join(missing)} in the folder LUMIGRAD_TEST_DATA")
    return found


def garden(across: int, *, every: int = 1, width: int = WIDTH) -> Scene:
    """The points of gsplat's own profile, in a grid of `across` times `across` copies.

    As in that profile, each point is a Gaussian of random shape and opacity. Only each `every`-th point is used.
    """
    (path,) = paths_of(GARDEN)
    with np.load(path) as archive:
        points, colors = archive["means3d"][::every], archive["colors"][::every] / 255.0
        view, lens = archive["viewmats"][0], archive["Ks"][0]
        film = int(archive["width"]), int(archive["height"])
    inside = (np.abs(points) <= _HALF).all(1)
    steps = np.arange(across) - across // 2
    copies = np.stack([*np.meshgrid(steps, steps, indexing="ij"), np.zeros((across, across))], -1).reshape(-1, 1, 3)
    means = (points[inside] + _APART * copies).reshape(-1, 3).astype(np.float32)
    random, count = np.random.Generator(np.random.PCG64(42)), len(means)
    quats = random.normal(size=(count, 4))
    sh = random.normal(0.0, 0.05, (count, (DEGREE + 1) ** 2, 3)).astype(np.float32)
    sh[:, 0] = (np.tile(colors[inside], (len(copies), 1)) - 0.5) / _CONSTANT
    scale = width / film[0]
    return Scene(
        means,
        (quats / np.linalg.norm(quats, axis=1, keepdims=True)).astype(np.float32),
        random.uniform(_SMALLEST, _LARGEST, (count, 3)).astype(np.float32),
        random.uniform(0.0, 1.0, count).astype(np.float32),
        sh,
        tuple(float(scale * lens[place]) for place in ((0, 0), (1, 1), (0, 2), (1, 2))),  # type: ignore[arg-type]
        view[:3, :3].astype(np.float32),
        view[:3, 3].astype(np.float32),
        width,
        int(scale * film[1]),
    )


def fitted(*, every: int = 1, width: int = WIDTH) -> Scene:
    """A capture as `lumigrad fit` reconstructed it, seen by the camera of one of its photographs."""
    from lumigrad.client import Gaussians

    scene_path, cameras_path = paths_of(FITTED)
    loaded = Gaussians.load(scene_path)
    capture = json.loads(cameras_path.read_text(encoding="utf-8"))
    frames = capture["frames"]
    pose = np.array(frames[len(frames) // 2]["transform_matrix"])
    # Converts OpenGL's axes of a camera to OpenCV's.
    pose[:, 1:3] *= -1
    view = np.linalg.inv(pose).astype(np.float32)
    scale = width / capture["w"]
    sh = np.zeros((len(loaded.means), (DEGREE + 1) ** 2, 3), np.float32)
    sh[:, : loaded.sh.shape[1]] = loaded.sh

    def some(values: Floats) -> Floats:
        return np.ascontiguousarray(values[::every], dtype=np.float32)

    return Scene(
        *(some(getattr(loaded, name)) for name in ("means", "quats", "scales", "opacities")),
        some(sh),
        tuple(float(scale * capture[name]) for name in ("fl_x", "fl_y", "cx", "cy")),  # type: ignore[arg-type]
        view[:3, :3],
        view[:3, 3],
        width,
        int(scale * capture["h"]),
    )
