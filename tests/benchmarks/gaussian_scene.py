"""The standard scene of Gaussian benchmarks, with the same numbers wherever it is made, and a trained scene."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

FIELD_OF_VIEW = np.deg2rad(60.0)
# The camera stands 4 units before the origin and looks down a little.
DISTANCE, TILT = 4.0, np.deg2rad(12.0)
DEGREE = 3
# Files of the trained scene, in the folder LUMIGRAD_TEST_DATA.
TRAINED = ("scenes/trained_biker/biker_gaussians.npz",)


@dataclass(frozen=True)
class Scene:
    """Tensors as the engine takes them, and the only camera: fx, fy, cx, cy in pixels, and its pose."""

    means: Floats
    quats: Floats
    scales: Floats
    opacities: Floats
    sh: Floats
    intrinsics: tuple[float, float, float, float]
    rotation: Floats
    translation: Floats
    width: int
    height: int

    @property
    def tensors(self) -> dict[str, Floats]:
        """The tensors by name."""
        return {name: getattr(self, name) for name in ("means", "quats", "scales", "opacities", "sh")}


def _unit(vectors: Doubles) -> Doubles:
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def _means(random: np.random.Generator, count: int) -> Doubles:
    """A rough shell, a rough floor and a cloud; y points down."""
    shell, floor = int(0.35 * count), int(0.25 * count)
    directions = _unit(random.normal(size=(shell, 3)))
    on_shell = directions * (1.0 + 0.02 * random.normal(size=(shell, 1)))
    floor_x = random.uniform(-2.5, 2.5, floor)
    floor_y = 1.1 + 0.02 * random.normal(size=floor)
    floor_z = random.uniform(-2.5, 2.5, floor)
    cloud = random.normal(0.0, 1.1, (count - shell - floor, 3))
    return np.concatenate([on_shell, np.column_stack([floor_x, floor_y, floor_z]), cloud])


def _opacities(random: np.random.Generator, count: int) -> Doubles:
    """Most are nearly opaque or nearly clear, as after training."""
    opaque = random.random(count) < 0.5
    high, low = random.normal(2.0, 1.0, count), random.normal(-2.5, 1.0, count)
    return 1.0 / (1.0 + np.exp(-np.where(opaque, high, low)))


def scene(count: int, width: int, height: int) -> Scene:
    """`count` Gaussians of degree 3, whose size falls with their number so that a pixel sees about as many."""
    random = np.random.Generator(np.random.PCG64(7))
    means = _means(random, count)
    scales = 0.9 * count ** (-1.0 / 3.0) * np.exp(random.normal(-0.6, 0.5, (count, 3)))
    # Flat along one axis.
    scales[np.arange(count), random.integers(0, 3, count)] *= 0.25
    quats = _unit(random.normal(size=(count, 4)))
    opacities = _opacities(random, count)
    sh = random.normal(0.0, 0.12, (count, (DEGREE + 1) ** 2, 3))
    sh[:, 0] = random.normal(0.2, 0.9, (count, 3))
    order = random.permutation(count)
    shuffled = [
        np.ascontiguousarray(values[order], dtype=np.float32) for values in (means, quats, scales, opacities, sh)
    ]
    cosine, sine = np.cos(TILT), np.sin(TILT)
    rotation = np.array([[1, 0, 0], [0, cosine, -sine], [0, sine, cosine]], np.float32)
    focal = float(np.float32(width / 2 / np.tan(FIELD_OF_VIEW / 2)))
    intrinsics = (focal, focal, width / 2, height / 2)
    return Scene(*shuffled, intrinsics, rotation, np.array([0, 0, DISTANCE], np.float32), width, height)


def trained_path() -> Path | None:
    """The path of the trained scene, if LUMIGRAD_TEST_DATA has it."""
    path = Path(os.environ.get("LUMIGRAD_TEST_DATA", ""), *TRAINED)
    return path if path.is_file() else None


def trained(path: Path) -> Scene:
    """The trained person at 960x720, seen from the front; 3.2 units tall, up is -y, the face towards -x."""
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files}
    eye = np.array([-4.8, -1.5, 0.0], np.float32)
    # Rows: right, down, forward.
    rotation = np.array([[0, 0, -1], [0, 1, 0], [1, 0, 0]], np.float32)
    return Scene(
        arrays["means"],
        arrays["quats"],
        arrays["scales"],
        arrays["opacities"],
        np.ascontiguousarray(arrays["sh0"].reshape(-1, 1, 3)),
        (900.0, 900.0, 480.0, 360.0),
        rotation,
        -rotation @ eye,
        960,
        720,
    )


def output_gradient(width: int, height: int) -> Floats:
    """The gradient of the loss with respect to the picture, [1, height, width, 3]."""
    random = np.random.Generator(np.random.PCG64(1))
    return random.standard_normal((1, height, width, 3)).astype(np.float32)
