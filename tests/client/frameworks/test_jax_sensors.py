"""Sensors through JAX's `render_gaussians`: pictures and gradients are PyTorch's, compiled or not."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lumigrad.client import (
    Camera,
    Client,
    FisheyeLens,
    FThetaLens,
    InvalidArgument,
    OrthographicLens,
    PinholeLens,
    SpinningLidar,
    Windshield,
)
from lumigrad.client import jax as in_jax
from lumigrad.client import torch as in_torch

WIDTH, HEIGHT, VIEWS, COUNT = 40, 30, 2, 40
SIZE = {"width": WIDTH, "height": HEIGHT}
GENERATOR = np.random.default_rng(5)


def scene() -> dict[str, np.ndarray]:
    return {
        "means": GENERATOR.normal(size=(COUNT, 3)) * 0.7 + [0, 0, 4],
        "quats": GENERATOR.normal(size=(COUNT, 4)),
        "scales": GENERATOR.uniform(0.08, 0.25, (COUNT, 3)),
        "opacities": GENERATOR.uniform(0.3, 0.9, COUNT),
        "colors": GENERATOR.uniform(size=(COUNT, 3)),
    }


def poses(shift: float) -> np.ndarray:
    matrices = np.tile(np.eye(4), (VIEWS, 1, 1))
    matrices[:, 0, 3] = shift + np.arange(VIEWS) * 0.2
    return matrices


RAYS = GENERATOR.normal(size=(VIEWS, HEIGHT, WIDTH, 6)) * [0.3, 0.3, 0.3, 0.1, 0.1, 0.1]
RAYS[..., 5] += 1
FILM = {"fx": 40.0, "fy": 41.0, "cx": WIDTH / 2, "cy": HEIGHT / 2}
CENTRE = {"cx": WIDTH / 2, "cy": HEIGHT / 2}
# Cases by name: the lens, its windshield, its shutter, and the arguments that are fixed.
CASES: dict[str, tuple[Any, Windshield | None, Any, dict[str, Any]]] = {
    "pinhole": (
        PinholeLens(**FILM, radial=(-0.2, 0.05), tangential=(0.01, -0.02), thin_prism=(0.01, 0.0, -0.01, 0.0)),
        None,
        "top_to_bottom",
        {},
    ),
    "fisheye": (
        FisheyeLens(**FILM, radial=(0.05, -0.01, 0.0, 0.0)),
        Windshield(horizontal=(0.01, 1.02, 0.01), vertical=(0.0, 0.01, 0.98)),
        "global",
        {"depth_order": "distance"},
    ),
    "ftheta": (
        FThetaLens(
            **CENTRE,
            pixel_distance_to_angle=(0, 1 / 40, 0, 0, 0, 0),
            angle_to_pixel_distance=(0, 40.0, 0, -2, 0, 0),
            linear=(1.01, 0.01, 0.0),
            max_angle=0.9,
        ),
        None,
        "left_to_right",
        {},
    ),
    "orthographic": (OrthographicLens(**FILM), None, "global", {}),
    "rays": (
        PinholeLens(**FILM),
        None,
        "global",
        {"response": "ray", "outputs": ("alpha", "expected_hit_distance", "normals")},
    ),
    "lidar": (
        SpinningLidar(
            row_elevations=np.linspace(0.3, -0.3, HEIGHT),
            column_azimuths=np.linspace(-0.5, 0.5, WIDTH),
            row_azimuth_offsets=np.zeros(HEIGHT),
        ),
        None,
        "global",
        {"response": "ray", "depth_order": "distance", "outputs": ("alpha", "hit_distance")},
    ),
}
FACING = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


def cameras(case: str) -> list[Camera]:
    lens, windshield, shutter, _ = CASES[case]
    size = lens.size if isinstance(lens, SpinningLidar) else (WIDTH, HEIGHT)
    found = []
    for view, end in zip(poses(0.0), poses(0.1), strict=True):
        view = FACING @ view if case == "lidar" else view
        moving = {} if shutter == "global" else {"end_rotation": end[:3, :3], "end_translation": end[:3, 3]}
        pose = view[:3, :3], view[:3, 3]
        found.append(Camera.sensor(lens, *pose, *size, shutter=shutter, windshield=windshield, **moving))
    return found


def arrays_of(case: str) -> dict[str, np.ndarray]:
    """Arrays in place of the cameras' numbers; those of lenses and windshields are named "lens.<name>"."""
    lens, windshield, shutter, _ = CASES[case]
    views = poses(0.0)
    found = {"viewmats": FACING @ views if case == "lidar" else views}
    if not isinstance(lens, FThetaLens | SpinningLidar):
        found["Ks"] = np.stack([camera.K for camera in cameras(case)])
    if shutter != "global":
        found["viewmats_end"] = poses(0.1)
    if case == "rays":
        found["rays"] = RAYS
    own = {name: getattr(lens, name, ()) for name in ("radial", "tangential", "thin_prism")}
    for name, values in own.items():
        if len(values):
            found[f"lens.{name}"] = np.tile(values, (VIEWS, 1))
    shared = {
        name: getattr(lens, name, ()) for name in ("angle_to_pixel_distance", "pixel_distance_to_angle", "linear")
    }
    shared |= {name: getattr(windshield, name, ()) for name in ("horizontal", "vertical")}
    if isinstance(lens, SpinningLidar):
        tables = lens.row_elevations, lens.column_azimuths, lens.row_azimuth_offsets
        shared |= dict(zip(("elevations", "azimuths", "offsets"), tables, strict=True))
    return found | {f"lens.{name}": np.asarray(values) for name, values in shared.items() if len(values)}


def rendered(module: Any, case: str, arrays: dict[str, Any], client: Client, **options: Any) -> dict[str, Any]:
    """The images that a framework's operator returns, by name."""
    given = {name: array for name, array in arrays.items() if "." not in name}
    lens = {name.partition(".")[2]: array for name, array in arrays.items() if "." in name}
    images = module.render_gaussians(
        **given, camera=cameras(case), lens=lens, **{**CASES[case][3], **options}, client=client
    )
    return {name: image for name, image in images._asdict().items() if image is not None}


@pytest.mark.parametrize("case", CASES)
def test_pictures_and_gradients_are_those_of_torch(case: str, client: Client) -> None:
    own = arrays_of(case)
    arrays = {**scene(), **own}
    leaves = {name: torch.tensor(array, dtype=torch.float32).requires_grad_() for name, array in arrays.items()}
    expected = rendered(in_torch, case, leaves, client)
    weights = {name: GENERATOR.normal(size=image.shape).astype(np.float32) for name, image in expected.items()}
    sum((torch.tensor(weights[name]) * image).sum() for name, image in expected.items()).backward()
    assert expected["alpha"].max() > 0.3

    def loss(values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        images = rendered(in_jax, case, values, client)
        return sum((weights[name] * image).sum() for name, image in images.items()), images

    values = {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}
    (_, images), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(values)
    assert images.keys() == expected.keys()
    for name, image in expected.items():
        np.testing.assert_allclose(images[name], image.detach(), rtol=1e-5, atol=1e-5, err_msg=name)
    for name, leaf in leaves.items():
        found = np.zeros(leaf.shape) if leaf.grad is None else leaf.grad.numpy()
        scale = max(float(np.abs(found).max()), 1e-6)
        np.testing.assert_allclose(gradients[name], found, atol=2e-4 * scale, rtol=1e-3, err_msg=name)
    # A polynomial that serves as a first guess has no gradient, nor have poses that rays replace.
    moving = {"means", *own} - {"Ks", "lens.pixel_distance_to_angle", *(("viewmats",) if "rays" in own else ())}
    assert all(np.abs(gradients[name]).max() > 0 for name in moving)


def test_moving_slices_are_those_of_torch(client: Client) -> None:
    starts, ends = np.tile(np.eye(4), (2, 1, 1)), np.tile(np.eye(4), (1, 1, 1))
    starts[:, 1, 3], ends[0, :3, 3] = (0.1, -0.2), (0.3, 0.1, -0.2)
    arrays = {**scene(), **arrays_of("pinhole")}
    weights = GENERATOR.normal(size=(VIEWS, HEIGHT, WIDTH, 3)).astype(np.float32)

    def image(module: Any, values: dict[str, Any], first: Any, last: Any) -> Any:
        transforms = [(0, 8, first[0], None), (8, 30, first[1], last[0])]
        return rendered(module, "pinhole", values, client, outputs=(), transforms=transforms)["color"]

    first, last = (torch.tensor(values, dtype=torch.float32).requires_grad_() for values in (starts, ends))
    leaves = {name: torch.tensor(array, dtype=torch.float32) for name, array in arrays.items()}
    expected = image(in_torch, leaves, first, last)
    (torch.tensor(weights) * expected).sum().backward()
    assert first.grad is not None and last.grad is not None and last.grad.abs().max() > 0.1

    def loss(begin: Any, end: Any) -> tuple[Any, Any]:
        found = image(in_jax, {name: jnp.asarray(array, jnp.float32) for name, array in arrays.items()}, begin, end)
        return (weights * found).sum(), found

    differentiated = jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))
    (_, found), gradients = differentiated(jnp.asarray(starts), jnp.asarray(ends))
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-5, atol=1e-5)
    for gradient, leaf in zip(gradients, (first, last), strict=True):
        np.testing.assert_allclose(gradient, leaf.grad, rtol=1e-3, atol=2e-4 * float(leaf.grad.abs().max()))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"viewmats_end": poses(0.0)}, "viewmats_end: expected None without a sensor"),
        ({"camera": cameras("pinhole"), "lens": {"radial": np.zeros((VIEWS, 7))}}, r"\['radial'\]: expected shape"),
        ({"transforms": [(0, 5, np.eye(4), np.eye(3))]}, r"transforms\[0\]: expected shape \[4, 4\]"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], text: str, client: Client) -> None:
    Ks = np.tile(np.diag([40.0, 40, 1]), (VIEWS, 1, 1))
    with pytest.raises(InvalidArgument, match=text):
        size = {} if "camera" in options else SIZE
        in_jax.render_gaussians(**scene(), viewmats=poses(0.0), Ks=Ks, **size, **options, client=client)
