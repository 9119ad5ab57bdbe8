"""Generated Gaussian scenes, one for each behaviour; each depends on its name only."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, fields

import numpy as np

from support.gaussians.case import Doubles, Floats, GaussianCase, InriaView, OpenCVView, Options, Slice
from support.gaussians.rotation import turned

ROTATION = turned(0.2, -0.3, 0.15)
TRANSLATION = np.array([0.3, -0.2, 0.5])
OPTIONS = {field.name for field in fields(Options)}
DISTORTION = (-0.12, 0.05, 0.004, -0.003)
RATIONAL = (0.3, -0.1, 0.002, 0.003, 0.02, 0.42, -0.05, 0.01)


@dataclass(frozen=True)
class Cloud:
    """The distribution of Gaussians in front of the first camera; `slope` bounds their lateral offset over depth."""

    count: int = 60
    slope: float = 0.5
    z: tuple[float, float] = (2.5, 6.0)
    # Bounds of the scales, which are log-uniform.
    scales: tuple[float, float] = (0.03, 0.3)
    opacities: tuple[float, float] = (0.1, 0.95)
    channels: int = 3
    # Degree of the spherical harmonics; None: colours are given.
    degree: int | None = None


def random_of(name: str) -> np.random.Generator:
    """A random generator seeded by the name."""
    return np.random.default_rng(zlib.crc32(name.encode()))


def opencv(width: int = 48, height: int = 40, *, focal: float = 1.0, **changes: object) -> OpenCVView:
    """A camera that looks at the cloud; the principal point is a little off the centre."""
    values: dict[str, object] = {
        "intrinsics": np.array([focal * width, 1.05 * focal * width, 0.48 * width, 0.53 * height]),
        "rotation": ROTATION,
        "translation": TRANSLATION,
    }
    return OpenCVView(**{**values, **changes})  # type: ignore[arg-type]


def inria(width: int = 48, height: int = 40, *, slope: float = 0.5) -> InriaView:
    """The same pose in Inria's convention: row-vector matrices, near 0.01 and far 100 in the projection."""
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = ROTATION, TRANSLATION
    tall = slope * height / width
    near, far = 0.01, 100.0
    projection = np.zeros((4, 4))
    projection[0, 0], projection[1, 1] = 1 / slope, 1 / tall
    projection[2, 2], projection[2, 3] = far / (far - near), -far * near / (far - near)
    projection[3, 2] = 1
    return InriaView(pose.T, (projection @ pose).T, -ROTATION.T @ TRANSLATION, slope, tall)


def _tensors(cloud: Cloud, random: np.random.Generator) -> dict[str, Floats]:
    depth = random.uniform(*cloud.z, cloud.count)
    aside = random.uniform(-1, 1, (cloud.count, 2)) * cloud.slope * np.abs(depth)[:, None]
    points = np.concatenate([aside, depth[:, None]], -1)
    tensors: dict[str, Doubles] = {
        "means": (points - TRANSLATION) @ ROTATION,
        "quats": random.standard_normal((cloud.count, 4)) * random.uniform(0.5, 2, (cloud.count, 1)),
        "scales": np.exp(random.uniform(*np.log(cloud.scales), (cloud.count, 3))),
        "opacities": random.uniform(*cloud.opacities, cloud.count),
    }
    if cloud.degree is None:
        tensors["colors"] = random.random((cloud.count, cloud.channels))
    else:
        tensors["sh"] = random.standard_normal((cloud.count, (cloud.degree + 1) ** 2, cloud.channels)) * 0.3
        tensors["sh"][:, 0] += 0.5
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def build(name: str, cloud: Cloud | None = None, **changes: object) -> GaussianCase:
    """A case; `changes` are fields of `GaussianCase` or of `Options`. An array of None removes a tensor."""
    cloud = cloud or Cloud()
    settings = {key: value for key, value in changes.items() if key in OPTIONS}
    values: dict[str, object] = {"width": 48, "height": 40, **_tensors(cloud, random_of(name))}
    values |= {key: value for key, value in changes.items() if key not in OPTIONS}
    for key in ("means", "quats", "scales", "covariances", "opacities", "sh", "colors", "background"):
        if values.get(key) is not None:
            values[key] = np.ascontiguousarray(np.asarray(values[key], np.float32))
    if "cameras" not in values:
        values["cameras"] = (opencv(int(values["width"]), int(values["height"])),)  # type: ignore[call-overload]
    return GaussianCase(name=name, options=Options(**settings), **values)  # type: ignore[arg-type]


def covariances_of(name: str, count: int, scales: tuple[float, float] = (0.03, 0.3)) -> Floats:
    """Random symmetric positive definite matrices as xx xy xz yy yz zz: [count, 6]."""
    random = random_of(name)
    turn = np.linalg.qr(random.standard_normal((count, 3, 3)))[0]
    spread = np.exp(random.uniform(*np.log(scales), (count, 1, 3))) ** 2
    rows, columns = np.triu_indices(3)
    return ((turn * spread) @ turn.transpose(0, 2, 1))[:, rows, columns].astype(np.float32)


def features() -> Iterator[GaussianCase]:
    """Appearance: channels, spherical harmonics, opacities, covariances, background."""
    yield build("single", Cloud(count=1, slope=0.1, scales=(0.3, 0.9), opacities=(0.8, 0.9)))
    yield build("rgb")
    yield build("one_channel", Cloud(channels=1))
    yield build("eight_channels", Cloud(channels=8), background=np.linspace(-0.3, 0.9, 8))
    yield build("twenty_channels", Cloud(channels=20), background=np.linspace(0.9, -0.2, 20))
    for degree in range(5):
        yield build(f"degree_{degree}", Cloud(degree=degree))
    yield build("degree_2_of_3", Cloud(degree=3), sh_degree=2)
    yield build("degree_0_of_4", Cloud(degree=4), sh_degree=0)
    yield build("degree_3_five_channels", Cloud(degree=3, channels=5))
    yield build("dark", Cloud(degree=2), sh=random_of("dark").standard_normal((60, 9, 3)) * 0.5 - 0.1)
    yield build("background", Cloud(count=25), background=(0.2, 0.9, -0.4))
    yield build("covariances", quats=None, scales=None, covariances=covariances_of("covariances", 60))
    yield build("faint", Cloud(count=80, opacities=(1e-3, 0.02)))
    yield build("opaque", Cloud(count=50), opacities=np.ones(50))
    yield build("opacity_from_zero_to_one", opacities=np.linspace(0, 1, 60))
    # The opacity is reduced to compensate for the blur.
    yield build("antialiased", Cloud(count=80), antialiased=True)
    yield build("antialiased_tiny", Cloud(count=80, scales=(2e-3, 0.03)), antialiased=True)


def extents() -> Iterator[GaussianCase]:
    """Positions and sizes: behind the camera, near, far, off-centre, intersecting; tiny, huge, flat, many."""
    yield build("behind_near_far", Cloud(count=90, z=(-3.0, 12.0)), near=0.5, far=8.0)
    yield build("off_screen", Cloud(count=90, slope=1.6))
    yield build("tiny", Cloud(count=120, scales=(1e-4, 5e-3)))
    yield build("tiny_and_huge", scales=np.exp(random_of("sizes").uniform(-7, 1.2, (60, 3))))
    yield build("needles", scales=np.exp(random_of("needles").uniform(-0.3, 0.3, (60, 3))) * [1e-3, 2e-2, 0.5])
    yield build("overlap", Cloud(count=300, slope=0.35, scales=(0.1, 0.8), degree=1), width=32, height=32)
    yield build("wide_angle", Cloud(count=60, slope=1.1, z=(0.3, 4.0)), cameras=(opencv(focal=0.6),))
    yield build("clamped", Cloud(count=60, slope=0.9, z=(0.6, 3.0), scales=(0.2, 0.9)), cameras=(opencv(focal=0.9),))
    ties = np.repeat(np.random.default_rng(5).uniform([-0.8, -0.6, 3], [0.8, 0.6, 5], (15, 3)), 2, 0)
    level = opencv(rotation=np.eye(3), translation=np.zeros(3))
    yield build("ties", Cloud(count=30), means=ties, cameras=(level,), eps2d=0.05)
    yield build("odd_size", Cloud(count=80), width=37, height=53)
    large = Cloud(count=30, scales=(0.2, 0.9))
    yield build("one_pixel", large, width=1, height=1, cameras=(opencv(focal=20.0, width=1, height=1),))
    yield build("one_row", Cloud(count=60), width=70, height=1, cameras=(opencv(70, 40),))
    yield build("radius_clip", Cloud(count=80), radius_clip=4.0)


def cameras() -> Iterator[GaussianCase]:
    """Projections, several cameras, several scenes, colours and backgrounds for each."""
    yield build("orthographic", cameras=(opencv(model="orthographic", intrinsics=np.array([9.0, 9.5, 23.0, 21.0])),))
    yield build("fisheye", Cloud(count=90, slope=1.3), cameras=(opencv(model="fisheye", focal=0.5),))
    axis = np.array([[0.0, 0.0, 3.0], [1e-6, -2e-6, 4.0], [2e-4, 1e-4, 5.0], [0.3, 0.2, 4.5]])
    yield build(
        "fisheye_axis", Cloud(count=4), means=(axis - TRANSLATION) @ ROTATION, cameras=(opencv(model="fisheye"),)
    )
    yield build("distorted", cameras=(opencv(distortion=DISTORTION),))
    yield build("distorted_rational", Cloud(slope=0.8), cameras=(opencv(focal=0.7, distortion=RATIONAL),))
    yield build("folding_back", Cloud(slope=1.3), cameras=(opencv(focal=0.5, distortion=(-0.3, 0.02, 0.0, 0.0)),))
    yield build("principal_point", cameras=(opencv(intrinsics=np.array([50.0, 41.0, 9.5, 33.0])),))
    yield build("sheared", cameras=(opencv(rotation=ROTATION @ [[1.1, 0.1, 0], [0, 0.9, 0.05], [0.02, 0, 1.2]]),))
    poses = [
        (turned(0.2, -0.3, 0.15), TRANSLATION),
        (turned(0.1, -0.5, 0), [0.9, 0, 0.7]),
        (turned(0.3, 0, 1), [0, 0, 1]),
    ]
    three = tuple(opencv(rotation=turn, translation=np.array(shift, float)) for turn, shift in poses)
    yield build("three_cameras", Cloud(degree=2), cameras=three, background=random_of("three").random((3, 3)))
    yield build("colors_per_view", colors=random_of("per view").random((3, 60, 3)), cameras=three)
    shapes = {"means": 3, "quats": 4, "scales": 3}
    first, second = build("scene one"), build("scene two")
    both = {key: np.stack([getattr(first, key), getattr(second, key)]) for key in (*shapes, "opacities", "colors")}
    yield build("batch", cameras=(*three[:2], *three[:2]), **both)
    both["colors"] = random_of("batch").random((2, 2, 60, 3)).astype(np.float32)
    yield build("batch_colors_per_view", cameras=(*three[:2], *three[1:]), background=np.eye(4, 3), **both)


def settings() -> Iterator[GaussianCase]:
    """Thresholds other than the defaults, and slices with transforms."""
    yield build("alpha_min", alpha_min=0.03)
    yield build("alpha_max", Cloud(opacities=(0.9, 1.0)), alpha_max=0.999)
    yield build("stop_early", Cloud(count=150, slope=0.3), transmittance_min=0.02)
    yield build("stop_never", Cloud(count=150, slope=0.3), transmittance_min=0.0)
    yield build("whole_pixels", pixel_center=0.0)
    yield build("scale_modifier", scale_modifier=0.7)
    matrix, other = np.eye(4), np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = turned(0.15, 0.1, -0.2), [0.2, -0.1, 0.3]
    other[:3, :3], other[:3, 3] = turned(-0.1, 0.15, 0.1), [-0.3, 0.2, 0.1]
    yield build("slice", Cloud(degree=3), slices=(Slice(0, 60, matrix),))
    yield build("slices", Cloud(degree=3), slices=(Slice(5, 20, matrix), Slice(35, 60, other)))
    level = (opencv(model="orthographic", focal=0.2),)
    yield build("slice_orthographic", slices=(Slice(10, 30, matrix),), cameras=level)


def inrias() -> Iterator[GaussianCase]:
    """Inria's convention: squares of tiles, unnormalised quaternions, a view and a projection matrix."""
    shape = {"near": 0.2, "pixel_center": 0.0, "semantics": "inria_exact"}
    view = {"cameras": (inria(),), **shape}

    def unit(count: int = 60) -> dict[str, Doubles]:
        quats = random_of("unit").standard_normal((count, 4))
        return {"quats": quats / np.linalg.norm(quats, axis=1, keepdims=True)}

    yield build("inria_degree_3", Cloud(degree=3), background=(0.3, 0.1, 0.7), **unit(), **view)
    yield build("inria_colors", **unit(), **view)
    yield build("inria_covariances", quats=None, scales=None, covariances=covariances_of("inria", 60), **view)
    yield build("inria_scale_modifier", Cloud(degree=1), scale_modifier=0.7, **unit(), **view)
    long = unit()["quats"] * random_of("long").uniform(0.7, 1.4, (60, 1))
    yield build("inria_quaternions", Cloud(degree=1), quats=long, **view)
    overlap = Cloud(count=300, slope=0.35, scales=(0.1, 0.8), degree=1)
    yield build("inria_crowd", overlap, width=32, height=32, **unit(300), **{**view, "cameras": (inria(32, 32),)})
    small = {"width": 37, "height": 53, **view, "cameras": (inria(37, 53),)}
    yield build("inria_tiles", Cloud(count=80), **unit(80), **small)
    clamped = Cloud(slope=0.9, z=(0.3, 3.0), scales=(0.1, 0.6), degree=0)
    yield build("inria_clamped", clamped, **unit(), **view)
    yield build("inria_behind", Cloud(count=90, z=(-3.0, 9.0)), **unit(90), **view)
    yield build("inria_antialiased", Cloud(scales=(5e-3, 0.2)), antialiased=True, **unit(), **view)
    yield build("inria_opaque", opacities=np.ones(60), **unit(), **view)
    halves = {**small, "pixel_center": 0.5}
    yield build("inria_half_pixels", Cloud(count=80), **unit(80), **halves)
    # An OpenCV camera, off the centre, in place of Inria's own.
    yield build("inria_opencv", Cloud(count=80), **unit(80), **{**halves, "cameras": (opencv(37, 53),)})
    yield build("inria_two_views", Cloud(degree=2), **unit(), **{**view, "cameras": (inria(), inria(slope=0.7))})


def gsplat_cases() -> list[GaussianCase]:
    """All cases with gsplat's image formation."""
    return [*features(), *extents(), *cameras(), *settings()]


def inria_cases() -> list[GaussianCase]:
    """All cases with Inria's image formation."""
    return list(inrias())


# The scales of the random gradients of outputs.
SIZES = {"color": 1.0, "alpha": 1.0, "transmittance": 0.7, "depth": 0.2, "expected_depth": 0.2, "inverse_depth": 1.0}


def upstream_of(case: GaussianCase, names: tuple[str, ...] = ("color", "alpha", "depth")) -> dict[str, Floats]:
    """Random gradients of outputs [C, H, W, ..]."""
    random = random_of(f"upstream of {case.name}")
    shape = (len(case.cameras), case.height, case.width)
    shapes = {name: (*shape, case.channels) if name == "color" else shape for name in names}
    return {name: (SIZES[name] * random.standard_normal(size)).astype(np.float32) for name, size in shapes.items()}
