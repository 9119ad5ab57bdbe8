"""Small trainings: an initial scene, cameras around it, and their target images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lumigrad.client import Camera, Client, Gaussians, Spheres, TargetImage

SIZE = (40, 32)


@dataclass(frozen=True)
class Lesson:
    """The initial scene of a training, the true scene, and the cameras of the target images."""

    scene: Gaussians | Spheres
    truth: Gaussians | Spheres
    cameras: list[Camera]

    def target_images(self, client: Client, **settings: Any) -> list[np.ndarray]:
        """uint8 images [H, W, 3] of the true scene."""
        pictures = [client.render(self.truth, camera, **settings).color for camera in self.cameras]
        return [np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8) for picture in pictures]

    def wrapped(self, client: Client, **settings: Any) -> list[TargetImage]:
        return [TargetImage(picture) for picture in self.target_images(client, **settings)]


def cameras(count: int = 4) -> list[Camera]:
    angles = np.linspace(0, 2 * np.pi, count, endpoint=False)
    eyes = [(4 * np.sin(angle), 0.7 * np.cos(3 * angle), 4 * np.cos(angle)) for angle in angles]
    width, height = SIZE
    return [Camera.look_at(eye, (0, 0, 0), width=width, height=height, fov_degrees=45) for eye in eyes]


def gaussian_lesson(count: int = 200, degree: int | None = 1, seed: int = 0) -> Lesson:
    """Gaussians in a ball, and the same Gaussians randomly moved and resized, with other colours."""
    generator = np.random.default_rng(seed)

    def scene(shift: float) -> Gaussians:
        color = generator.uniform(-0.5, 0.5, size=(count, 1 if degree is None else (degree + 1) ** 2, 3))
        if degree is not None:
            color[:, 1:] *= 0.3
        looks = {"colors": color[:, 0] + 0.5} if degree is None else {"sh": color}
        return Gaussians(
            means + shift * generator.normal(size=(count, 3)),
            quats,
            scales * np.exp(shift * generator.normal(size=(count, 3))),
            np.clip(opacities + shift * generator.normal(size=count), 0.05, 0.95),
            **looks,
        )

    means = generator.normal(size=(count, 3)) * 0.6
    quats = generator.normal(size=(count, 4))
    quats /= np.linalg.norm(quats, axis=1, keepdims=True)
    scales = np.exp(generator.uniform(-2.8, -1.8, size=(count, 3)))
    opacities = generator.uniform(0.3, 0.9, size=count)
    return Lesson(scene(0.0), scene(0.05), cameras())


def sphere_lesson(count: int = 150, seed: int = 0) -> Lesson:
    """Spheres in a ball, and the same spheres randomly moved and resized, with other colours."""
    generator = np.random.default_rng(seed)
    positions = generator.normal(size=(count, 3)) * 0.6
    radii = generator.uniform(0.08, 0.2, size=count)

    def scene(shift: float) -> Spheres:
        return Spheres(
            positions + shift * generator.normal(size=(count, 3)),
            generator.uniform(size=(count, 3)),
            radii * np.exp(shift * generator.normal(size=count)),
            generator.uniform(0.5, 0.9, size=count),
        )

    return Lesson(scene(0.0), scene(0.05), cameras())
