"""Generated scenes, one for each behaviour of the original; each depends on its name only."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from support.spheres.case import Floats, SphereCase

IDENTITY = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 2.0)
POSE = (0.3, -0.25, 0.4, 0.12, -0.08, 0.2, 4.0, 2.0)
ORTHOGONAL = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.5)
ORTHOGONAL_POSE = (0.3, -0.25, 0.4, 0.12, -0.08, 0.2, 0.0, 5.5)
SIX_D = (0.3, -0.25, 0.4, 0.98, -0.2, 0.05, 0.21, 0.96, -0.12, 4.0, 2.0)
SIX_D_RAW = (0.3, -0.25, 0.4, 1.9, -0.3, 0.1, 0.5, 1.4, -0.2, 4.0, 2.0, -5.0, 4.0)
# The original's automatic near limit for a batch whose largest focal length is 4.
BATCH_NEAREST = float(np.float32(4) + np.float32(2e-6))


@dataclass(frozen=True)
class Cloud:
    """The distribution of spheres: in a box, with radii between two limits."""

    count: int = 25
    half_width: float = 2.2
    z: tuple[float, float] = (11.0, 16.0)
    radii: tuple[float, float] = (0.2, 0.7)
    channels: int = 3


def random_of(name: str) -> np.random.Generator:
    """A random generator seeded by the name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def build(name: str, cloud: Cloud | None = None, **options: object) -> SphereCase:
    """A case; `options` are fields of `SphereCase`, and arrays among them replace random ones."""
    cloud = cloud or Cloud()
    random = random_of(name)
    positions = random.uniform(-1, 1, (cloud.count, 3)) * cloud.half_width
    positions[:, 2] = random.uniform(*cloud.z, cloud.count)
    if options.get("right_handed"):
        positions[:, 2] *= -1
    width, height = int(options.get("width", 44)), int(options.get("height", 44))  # type: ignore[call-overload]
    values: dict[str, object] = {
        "positions": _floats(positions),
        "colors": _floats(random.random((cloud.count, cloud.channels))),
        "radii": _floats(random.uniform(*cloud.radii, cloud.count)),
        "camera": IDENTITY,
        "width": width,
        "height": height,
        "gamma": 0.1,
        "max_depth": 22.0,
        "background": np.ones(cloud.channels, np.float32),
        "output_gradient": _floats(random.standard_normal((height, width, cloud.channels))),
    }
    values.update(options)
    for key in ("positions", "colors", "radii", "camera", "background", "opacities"):
        if values.get(key) is not None:
            values[key] = _floats(values[key])
    return SphereCase(name=name, **values)  # type: ignore[arg-type]


def _floats(values: object) -> Floats:
    return np.ascontiguousarray(np.asarray(values, np.float32))


def cameras() -> Iterator[SphereCase]:
    """Projections, handedness, rotations, principal points."""
    yield build("perspective")
    yield build("perspective_posed", camera=POSE)
    yield build("perspective_wide_film", camera=POSE, width=58, height=36)
    yield build("perspective_tall_film", camera=POSE, width=31, height=53)
    yield build("right_handed", right_handed=True)
    yield build("right_handed_posed", camera=POSE, right_handed=True)
    yield build("orthogonal", camera=ORTHOGONAL, orthogonal=True)
    yield build("orthogonal_posed", camera=ORTHOGONAL_POSE, orthogonal=True)
    yield build("orthogonal_right_handed", camera=ORTHOGONAL_POSE, orthogonal=True, right_handed=True)
    yield build("orthogonal_shifted", camera=(*ORTHOGONAL_POSE, 4.0, -6.0), orthogonal=True)
    yield build("principal_right_down", camera=(*POSE, 6.0, 3.0))
    yield build("principal_left_up", camera=(*POSE, -5.0, -8.0))
    yield build("principal_mixed", camera=(*POSE, 7.0, -4.0), width=40, height=52)
    yield build("six_d", camera=SIX_D)
    yield build("six_d_unnormalised_shifted", camera=SIX_D_RAW)
    yield build("rotated_position", camera=POSE, first_r_then_t=True)
    yield build("half_turn", camera=(0.0, 0.0, 27.0, 0.0, 3.0, 0.0, 4.0, 2.0))


def blending() -> Iterator[SphereCase]:
    """Channels, tracked spheres, softness, opacity, background, hit counts."""
    yield build("one_channel", Cloud(channels=1), camera=POSE)
    yield build("four_channels", Cloud(channels=4), camera=POSE)
    yield build("seven_channels_eight_tracked", Cloud(channels=7), camera=POSE, n_track=8)
    yield build("sixteen_channels", Cloud(channels=16), camera=POSE)
    yield build("sixty_four_channels", Cloud(channels=64), camera=POSE, width=24, height=24)
    yield build("one_tracked", camera=POSE, n_track=1)
    yield build("most_tracked", Cloud(count=200, half_width=1.0), camera=POSE, n_track=128, width=24, height=24)
    for gamma in (1e-4, 1e-3, 1e-2, 1.0):
        yield build(f"gamma_{gamma:g}", camera=POSE, gamma=gamma)
    # No two spheres cover the same pixel: gradients come from rounding alone, and still equal the original's.
    yield build("gamma_0.0001_apart", Cloud(count=12, radii=(0.2, 0.5)), camera=POSE, gamma=1e-4)
    yield build("opacity", camera=POSE, opacities=random_of("opacities").random(25))
    mixed = np.concatenate([np.zeros(5), np.ones(5), random_of("mixed opacities").random(15)])
    yield build("opacity_from_zero_to_one", camera=POSE, gamma=0.03, opacities=mixed)
    yield build("background", camera=POSE, gamma=0.05, background=(0.2, 0.9, -0.4), background_depth=0.6)
    yield build("background_in_front", camera=POSE, background_depth=0.999)
    yield build("hits", camera=POSE, hits_only=True)
    yield build("min_depth", camera=POSE, min_depth=9.0)


def extents() -> Iterator[SphereCase]:
    """Spheres at the limits of what is drawn: outside the film, near, far, behind, tiny, huge, none."""
    yield build("partly_outside", Cloud(count=40, half_width=5.5), camera=POSE)
    depths = Cloud(count=60, z=(-20.0, 30.0), radii=(0.3, 1.5))
    yield build("behind_near_far", depths, camera=POSE)
    yield build("behind_near_far_orthogonal", depths, camera=ORTHOGONAL_POSE, orthogonal=True, min_depth=0.5)
    yield build("tiny", Cloud(count=120, radii=(1e-3, 0.02)), camera=POSE)
    yield build("about_a_pixel", Cloud(count=60, radii=(0.05, 0.2)), camera=POSE)
    yield build("tiny_orthogonal", Cloud(count=120, radii=(1e-3, 0.05)), camera=ORTHOGONAL_POSE, orthogonal=True)
    yield build("huge", Cloud(count=6, z=(15.0, 20.0), radii=(5.0, 9.0)), camera=POSE)
    yield build("nothing_visible", Cloud(count=10, z=(-16.0, -11.0)))
    yield build("centre_ray", positions=[[0.0, 0.0, 13.0]], radii=[0.9], width=33, height=33, cloud=Cloud(count=1))
    yield build(
        "single", Cloud(count=1), positions=[[0.0, 0.0, 13.0]], radii=[0.9], opacities=[0.7], width=32, height=32
    )
    wide = Cloud(count=40, half_width=12.0, z=(1.5, 8.0), radii=(0.3, 1.2))
    yield build("wide_angle", wide, camera=(0.0, 0.0, 0.0, 0.05, -0.1, 0.02, 0.3, 2.0), max_depth=18.0)
    twin = np.tile(np.array([[0.1, 0.2, 13.0]], np.float32), (3, 1))
    yield build("equal_depths", Cloud(count=3), positions=twin, radii=[0.8, 0.8, 0.8])


def crowds() -> Iterator[SphereCase]:
    """Many spheres per pixel: blocks of candidates, and early stopping."""
    heavy = Cloud(count=350, half_width=1.1, radii=(0.3, 0.8))
    for difference in (0.0, 0.01, 0.2, 0.9):
        yield build(f"crowd_difference_{difference:g}", heavy, camera=POSE, gamma=0.03, allowed_difference=difference)
    for limit in (1, 2, 3, 70):
        yield build(f"crowd_max_hits_{limit}", heavy, camera=POSE, allowed_difference=0.0, max_hits=limit)
    yield build("max_hits_unreached", camera=POSE, max_hits=1)
    yield build("crowd_hits", heavy, camera=POSE, hits_only=True)
    yield build("crowd_all_hits", heavy, camera=POSE, hits_only=True, allowed_difference=0.0)
    yield build("crowd_opacity", heavy, camera=POSE, gamma=0.03, opacities=random_of("crowd").random(350))
    yield build("crowd_orthogonal", heavy, camera=ORTHOGONAL_POSE, orthogonal=True, gamma=0.03)
    many = Cloud(count=4000, half_width=3.0, radii=(0.02, 0.3))
    yield build("many", many, camera=POSE, gamma=1e-2, n_track=1, width=80, height=72)


def batch() -> Iterator[SphereCase]:
    """The elements of a batch, whose near limit is that of the largest focal length; each has its own opacities."""
    focal_lengths = (3.5, 4.0, 3.0)
    for index, focal_length in enumerate(focal_lengths):
        camera = (0.1 * index, -0.2, 0.3, 0.1, -0.05 * index, 0.1, focal_length, 2.0)
        yield build(f"batch_{index}", camera=camera, min_depth=BATCH_NEAREST, width=48, height=40)
        opacities = random_of(f"batch opacity {index}").random(25)
        yield build(f"batch_opacity_{index}", camera=camera, min_depth=BATCH_NEAREST, opacities=opacities)


def compat_cases() -> list[SphereCase]:
    """All cases."""
    return [*cameras(), *blending(), *extents(), *crowds(), *batch()]
