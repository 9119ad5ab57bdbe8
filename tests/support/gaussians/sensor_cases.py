"""Cases of sensors for the engines and the reference: one description, from which both are made."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lumigrad.kernels.gaussians import (
    Camera,
    FisheyeLens,
    FThetaLens,
    Gaussians,
    OrthographicLens,
    PinholeLens,
    SensorLens,
    Settings,
    Transform,
    UnscentedTransform,
    Windshield,
)
from lumigrad.kernels.gaussians.sensor_lenses import jacobian_limits
from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians.rays import render_rays
from support.gaussians.rotation import turned
from support.gaussians.sensors import Exposure, Optics, Rules, Slices, render

Doubles = NDArray[np.float64]
WIDTH, HEIGHT = 48, 36
CENTER = (23.1, 18.4)
POSE6 = ("camera_pose", "camera_pose_end")
MATRICES = ("transforms", "transforms_end")


@dataclass(frozen=True)
class SensorCase:
    """A scene of float32 tensors, a sensor and the settings that differ from the defaults."""

    name: str
    lens: SensorLens
    scene: Mapping[str, Tensor]
    start: Doubles
    end: Doubles | None = None
    shutter: str = "global"
    row_time: str = "continuous"
    windshield: Windshield | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    width: int = WIDTH
    height: int = HEIGHT
    # [H, W, 6], in place of those of the pixels.
    rays: Tensor | None = None
    transforms: tuple[Transform, ...] = ()

    @property
    def on_rays(self) -> bool:
        """Whether Gaussians respond along rays."""
        return self.settings.get("response") == "ray"

    def camera(self) -> Camera:
        """The engine's camera."""
        end: dict[str, Any] = {}
        if self.end is not None:
            end = {"end_rotation": self.end[:3, :3], "end_translation": self.end[:3, 3]}
        return Camera.sensor(
            self.lens, self.start[:3, :3], self.start[:3, 3], self.width, self.height, shutter=self.shutter,
            row_time=self.row_time, windshield=self.windshield, **end,
        )  # fmt: skip

    def optics(self) -> Optics:
        """The reference's lens; its parameters are leaves of the graph."""
        lens, given = self.lens, {}
        padded = {"radial": 4 if isinstance(lens, FisheyeLens) else 6, "tangential": 2, "thin_prism": 4, "linear": 3}
        padded |= {"angle_to_pixel_distance": 6, "pixel_distance_to_angle": 6}
        for item in fields(lens):
            if item.name in padded:
                values = getattr(lens, item.name)
                given[item.name] = [*values, *[0.0] * (padded[item.name] - len(values))]
        if not isinstance(lens, FThetaLens):
            given["focal"] = [lens.fx, lens.fy]
        given["center"] = [lens.cx, lens.cy]
        if self.windshield is not None:
            glass = {item.name: getattr(self.windshield, item.name) for item in fields(Windshield)}
            given |= {name: values for name, values in glass.items() if values}
        return Optics(
            lens.kind,
            {name: torch.tensor(values, dtype=torch.float64, requires_grad=True) for name, values in given.items()},
            lens.limit(self.width, self.height),
            getattr(lens, "domain", "monotone"),
            getattr(lens, "reference", ""),
            getattr(lens, "behind", False),
            self._edges(),
        )

    def _edges(self) -> tuple[tuple[float, float], tuple[float, float]] | None:
        lens = self.lens
        if not isinstance(lens, PinholeLens):
            return None
        if lens.kind == "pinhole":
            x, y = 0.15 * self.width, 0.15 * self.height
            return (-x, -y), (self.width + x, self.height + y)
        min_u, max_u, min_v, max_v = jacobian_limits(lens, self.width, self.height)
        pixels = [(u * lens.fx + lens.cx, v * lens.fy + lens.cy) for u, v in ((min_u, min_v), (max_u, max_v))]
        return pixels[0], pixels[1]


def scene(
    count: int = 40, seed: int = 3, degree: int | None = None, ahead: tuple[float, float] = (3.0, 7.0)
) -> dict[str, Tensor]:
    """Gaussians in front of a camera at the origin."""
    random = np.random.default_rng(seed)
    depth = random.uniform(*ahead, count)
    means = np.stack(
        [random.uniform(-0.45, 0.45, count) * depth, random.uniform(-0.35, 0.35, count) * depth, depth], -1
    )
    tensors = {
        "means": means,
        "quats": random.normal(size=(count, 4)),
        "scales": np.exp(random.uniform(math.log(0.06), math.log(0.5), (count, 3))),
        "opacities": random.uniform(0.2, 0.95, count),
    }
    if degree is None:
        tensors["colors"] = random.uniform(0, 1, (count, 3))
    else:
        tensors["sh"] = random.normal(size=(count, (degree + 1) ** 2, 3)) * 0.2
    return {name: torch.tensor(value, dtype=torch.float32) for name, value in tensors.items()}


def around(count: int = 40, seed: int = 8) -> dict[str, Tensor]:
    """Gaussians 60 to 110 degrees from the axis of a camera at the origin, towards the corners of its image."""
    random = np.random.default_rng(seed)
    angle = random.uniform(math.radians(60), math.radians(110), count)
    side = math.pi / 4 + math.pi / 2 * random.integers(0, 4, count) + random.uniform(-0.4, 0.4, count)
    directions = np.stack([np.sin(angle) * np.cos(side), np.sin(angle) * np.sin(side), np.cos(angle)], -1)
    means = directions * random.uniform(3.0, 7.0, (count, 1))
    tensors = scene(count, seed)
    return {**tensors, "means": torch.tensor(means, dtype=torch.float32), "scales": 2 * tensors["scales"]}


def pose(x: float = 0.02, y: float = -0.03, z: float = 0.05, t: Sequence[float] = (0.1, -0.05, 0.2)) -> Doubles:
    """A pose [4, 4], world to camera."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = turned(x, y, z), t
    return matrix


START, END = pose(), pose(0.05, 0.01, -0.02, (0.3, 0.05, 0.1))
FOCAL = {"fx": 44.0, "fy": 46.0, "cx": CENTER[0], "cy": CENTER[1]}
PINHOLE = PinholeLens(**FOCAL)
OPENCV = PinholeLens(
    **FOCAL,
    radial=(-0.21, 0.06, -0.004, 0.02, 0.01, -0.001),
    tangential=(0.003, -0.002),
    thin_prism=(0.002, -0.001, -0.003, 0.001),
)
FISHEYE = FisheyeLens(**{**FOCAL, "fx": 40.0, "fy": 41.0}, radial=(-0.04, 0.01, -0.003, 0.0004))
WIDE_FISHEYE = FisheyeLens(fx=13.5, fy=13.7, cx=18.4, cy=17.8, radial=FISHEYE.radial, max_angle=2.2, behind=True)
FTHETA = FThetaLens(
    cx=CENTER[0], cy=CENTER[1], max_angle=1.4, angle_to_pixel_distance=(0.0, 42.0, 0.8, -1.5, 0.3),
    pixel_distance_to_angle=(0.0, 1 / 42.0), linear=(1.01, 0.003, -0.002),
)  # fmt: skip
INVERSE_FTHETA = FThetaLens(
    cx=CENTER[0], cy=CENTER[1], max_angle=1.4, reference="pixel_distance_to_angle",
    angle_to_pixel_distance=(0.0, 42.0), pixel_distance_to_angle=(0.0, 1 / 42.0, 2e-6, 1e-7, 0.0, 1e-12),
    linear=(0.99, -0.004, 0.002),
)  # fmt: skip
ORTHOGRAPHIC = OrthographicLens(fx=9.0, fy=8.5, cx=CENTER[0], cy=CENTER[1])
GLASS = Windshield(
    horizontal=(0.003, 1.02, 0.004, 0.01, -0.006, 0.002, 0.03, 0.001, -0.002, 0.004),
    vertical=(-0.002, 0.005, -0.004, 0.98, 0.006, 0.02),
)
ROLLING = {"start": START, "end": END, "shutter": "top_to_bottom"}
CASES = {
    case.name: case
    for case in (
        SensorCase("pinhole", PINHOLE, scene(degree=2), START),
        SensorCase("opencv", OPENCV, scene(), START),
        SensorCase("fisheye", FISHEYE, scene(), START, settings={"depth_order": "distance"}),
        SensorCase(
            "wide fisheye", WIDE_FISHEYE, around(), START, settings={"depth_order": "distance"}, width=36, height=36
        ),
        SensorCase("ftheta", FTHETA, scene(), START),
        SensorCase("inverse ftheta", INVERSE_FTHETA, scene(), START),
        SensorCase("orthographic", ORTHOGRAPHIC, scene(), START),
        SensorCase("windshield", OPENCV, scene(), START, windshield=GLASS),
        SensorCase("rolling", PINHOLE, scene(degree=1), **ROLLING),
        SensorCase("rolling fisheye", FISHEYE, scene(), START, END, "right_to_left", windshield=GLASS),
        SensorCase("rolling up", OPENCV, scene(), START, END, "bottom_to_top", settings={"depth_order": "distance"}),
        SensorCase("staircase", INVERSE_FTHETA, scene(), START, END, "left_to_right", "staircase"),
        SensorCase(
            "tiles",
            PINHOLE,
            scene(60),
            START,
            settings={
                "tile_bounds": "gsplat",
                "unscented": UnscentedTransform(alpha=1.0, kappa=0.5, margin=0.2, require_all=True),
            },
        ),
    )
}


def by_jacobian(name: str, **changes: Any) -> SensorCase:
    case = CASES[name]
    settings = {name: value for name, value in case.settings.items() if name != "unscented"}
    settings["projection_method"] = "jacobian"
    return replace(case, name=f"{name} by the Jacobian", settings=settings, **changes)


def beyond_the_image() -> dict[str, Tensor]:
    """Gaussians many of whose centres are so far outside the image that the Jacobian is clamped."""
    around = scene(90, seed=6)
    around["means"][:, :2] *= 2.0
    around["scales"] *= 2.0
    return around


JACOBIAN_CASES = {
    case.name: case
    for case in (
        *(by_jacobian(name) for name, case in CASES.items() if case.end is None),
        by_jacobian("fisheye", windshield=GLASS),
        replace(by_jacobian("pinhole", scene=beyond_the_image()), name="pinhole beyond the image"),
        replace(by_jacobian("opencv", scene=beyond_the_image()), name="opencv beyond the image"),
    )
}
# The same glass with its inverse, which rays need.
BACK = Windshield(
    horizontal=GLASS.horizontal,
    vertical=GLASS.vertical,
    horizontal_inverse=(-0.003, 0.98, -0.004, 0.0, 0.006, 0.0),
    vertical_inverse=(0.002, -0.005, 0.0, 0.004, 0.0, 0.0, 1.02, -0.006, 0.0, -0.02),
)


def given_rays() -> Tensor:
    """Rays with different origins, and directions of several lengths."""
    random = torch.Generator().manual_seed(2)
    y, x = torch.meshgrid(torch.linspace(-0.4, 0.4, 36), torch.linspace(-0.5, 0.5, 48), indexing="ij")
    directions = torch.stack([x, y, torch.ones_like(x)], -1) * (0.5 + torch.rand(36, 48, 1, generator=random))
    return torch.cat([0.1 * torch.rand(36, 48, 3, generator=random), directions], -1)


def on_rays(name: str, **changes: Any) -> SensorCase:
    case = CASES[name]
    if case.windshield is not None:
        changes["windshield"] = BACK
    return replace(case, name=f"{name} on rays", settings={**case.settings, "response": "ray"}, **changes)


# Slices that turn and move by several pixels, one that rests, and some Gaussians of the world around them.
SLICES = (
    Transform(8, 24, pose(0.1, -0.05, 0.02, (0.1, 0.0, -0.2)), pose(-0.05, 0.15, 0.1, (-0.2, 0.1, 0.1))),
    Transform(30, 40, pose(t=(0.2, 0.0, 0.0))),
    Transform(25, 29, pose(0.0, 0.0, 0.3, (0.0, 0.1, 0.2)), pose(0.0, 0.0, -0.4, (0.0, 0.1, 0.2))),
)
RAY_CASES = {name: on_rays(name) for name in CASES} | {"given": on_rays("opencv", rays=given_rays())}
RAY_CASES |= {
    f"{name} by the Jacobian": replace(on_rays(name), settings={**by_jacobian(name).settings, "response": "ray"})
    for name in ("pinhole", "ftheta", "windshield", "tiles")
}


@dataclass(frozen=True)
class Made:
    """An engine's results for a case: outputs of its only camera, and gradients."""

    outputs: dict[str, Doubles]
    gradients: dict[str, Doubles]


RAY_IMAGES = ("hit_distance", "normals")
IMAGES = ("color", "alpha", "depth", "inverse_depth", *RAY_IMAGES)
# The reference's results for a case: images, gradients of its inputs, and the gradients of the images.
Known = tuple[dict[str, Any], dict[str, Doubles], dict[str, Tensor]]
OUTPUTS = ("color", "alpha", "depth", "inverse_depth", "means2d", "conics", "depths", "radii")
WANTED = ("means", "quats", "scales", "opacities", "cameras", "lenses")


def run(engine: Engine, case: SensorCase, upstream: Mapping[str, Tensor], wanted: Sequence[str] = WANTED) -> Made:
    """Renders a case and differentiates it."""
    settings = Settings(**case.settings)
    names = (*OUTPUTS, *RAY_IMAGES) if case.on_rays else OUTPUTS
    rays = None if case.rays is None else case.rays[None]
    scene = Gaussians(**case.scene)
    outputs, state = engine.forward(
        scene, [case.camera()], settings, transforms=case.transforms, rays=rays, outputs=names, retain=True
    )
    colors = "sh" if "sh" in case.scene else "colors"
    extra = (*(() if rays is None else ("rays",)), *(("transforms",) if case.transforms else ()))
    gradients, _ = engine.backward(state, {name: v[None] for name, v in upstream.items()}, (*wanted, *extra, colors))
    return Made(
        {name: value[0].double().numpy() for name, value in outputs.items()},
        {name: value.double().numpy() for name, value in gradients.items()},
    )


def pose_leaves() -> dict[str, Tensor]:
    """Perturbations [6] of the poses at both ends, by the names of their gradients."""
    return {name: torch.zeros(6, dtype=torch.float64, requires_grad=True) for name in POSE6}


def moved(matrix: Doubles, xi: Tensor) -> Tensor:
    """exp(xi) V, to first order in the translation."""
    v, base = xi[3:], torch.tensor(matrix, dtype=torch.float64)
    zero = torch.zeros((), dtype=torch.float64)
    skew = torch.stack([zero, -v[2], v[1], v[2], zero, -v[0], -v[1], v[0], zero]).reshape(3, 3)
    turn = torch.linalg.matrix_exp(skew)
    top = torch.cat([turn @ base[:3, :3], (turn @ base[:3, 3] + xi[:3])[:, None]], 1)
    return torch.cat([top, base[3:]])


def reference(case: SensorCase) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The reference's images of a case, and the inputs they depend on, named as the engine's gradients."""
    leaves = {name: value.double().requires_grad_() for name, value in case.scene.items()}
    xi = pose_leaves()
    lens = case.optics()
    end = None if case.end is None else moved(case.end, xi["camera_pose_end"])
    exposure = Exposure(moved(case.start, xi["camera_pose"]), end, case.shutter, case.row_time)
    rays = None if case.rays is None else case.rays.double().requires_grad_()
    turns, slices = slices_of(case)
    result = render(leaves, lens, exposure, case.width, case.height, rules_of(case.settings), slices)
    if case.on_rays:
        result = render_rays(leaves, lens, exposure, rays, result, slices)
    inputs = {**leaves, **xi, **turns, **({} if rays is None else {"rays": rays})}
    names = {item.name: f"windshield_{item.name}" for item in fields(Windshield)}
    inputs |= {names.get(name, f"lens_{name}"): value for name, value in lens.parameters.items()}
    return result, inputs


def upstream_of(images: Mapping[str, Any]) -> dict[str, Tensor]:
    """Random gradients of the images; 0 where rounding decides."""
    random, stable = torch.Generator().manual_seed(5), images["stable"]
    drawn = {name: torch.rand(images[name].shape, generator=random) - 0.3 for name in IMAGES if name in images}
    return {name: v * (stable[..., None] if v.dim() == 3 else stable) for name, v in drawn.items()}


def known(images: dict[str, Any], inputs: Mapping[str, Tensor]) -> Known:
    """Differentiates the images by the inputs that they depend on."""
    upstream = upstream_of(images)
    sum((images[name] * v.double()).sum() for name, v in upstream.items()).backward()
    found = {
        name: np.zeros(value.shape) if value.grad is None else value.grad.numpy() for name, value in inputs.items()
    }
    if "lens_center" in found:
        focal = found.pop("lens_focal", np.zeros(2))
        found["camera_intrinsics"] = np.concatenate([focal, found.pop("lens_center")])
    return images, found, upstream


def assert_as_known(
    case: SensorCase,
    engine: Engine,
    expected: Known,
    wanted: Sequence[str] = WANTED,
    *,
    loose: tuple[str, ...] = ("lens_", "windshield", "camera_intrinsics", "rays", "lidar_"),
    least_stable: float = 0.9,
) -> Made:
    """Asserts that images and gradients along rays are those of the reference, but for gradients of slices' matrices.

    Args:
        case: to render.
        engine: that renders it.
        expected: the reference's results.
        wanted: the inputs to differentiate by.
        loose: beginnings of the names of gradients that may be off by twice as much as others.
        least_stable: the least share of pixels, or returns, that rounding does not decide.
    """
    images, gradients, upstream = expected
    found = run(engine, case, upstream, wanted)
    stable = images["stable"].numpy()
    assert stable.mean() > least_stable
    assert (images["alpha"].detach().numpy() > 0.1).mean() > 0.2, "there is something to see"
    for output in upstream:
        values = images[output].detach().numpy()
        assert_image(found.outputs[output][stable], values[stable], 5e-5 * max(1.0, float(np.abs(values).max())))
    for key, gradient in gradients.items():
        if key not in MATRICES:
            tolerance = 2e-3 if key.startswith(loose) else 1e-3
            assert_relative(key, found.gradients[key].reshape(gradient.shape), gradient, tolerance, 1e-6)
    return found


def slices_of(case: SensorCase) -> tuple[dict[str, Tensor], Slices]:
    """The slices of the reference; and perturbations [T, 6] of their poses, by the names of the gradients."""
    leaves = {name: torch.zeros(len(case.transforms), 6, dtype=torch.float64) for name in MATRICES}
    slices = []
    for k, transform in enumerate(case.transforms):
        first, last = (leaves[name].requires_grad_()[k] for name in MATRICES)
        end = None if transform.matrix_end is None else moved(transform.matrix_end, last)
        slices.append((transform.begin, transform.end, Exposure(moved(transform.matrix, first), end)))
    return (leaves if slices else {}), slices


def pose6_of(gradient: Doubles, matrix: Doubles) -> Doubles:
    """The gradient [6] of xi at 0 for a pose exp(xi) M, given that of M [4, 4]."""
    m, push = gradient[:3, :3] @ matrix[:3, :3].T, gradient[:3, 3]
    turn = np.array([m[2, 1] - m[1, 2], m[0, 2] - m[2, 0], m[1, 0] - m[0, 1]])
    return np.concatenate([push, turn + np.cross(matrix[:3, 3], push)])


def rules_of(settings: Mapping[str, Any]) -> Rules:
    """The reference's settings."""
    sigma = settings.get("unscented", UnscentedTransform())
    same = {item.name: getattr(sigma, item.name) for item in fields(sigma)}
    return Rules(**same, **{name: value for name, value in settings.items() if name != "unscented"})
