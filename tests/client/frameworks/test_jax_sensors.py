"""Sensors through JAX's `render_gaussians`: pictures and gradients are PyTorch's, also when compiled."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

from lumigrad.client import Client, InvalidArgument
from lumigrad.client import jax as in_jax
from lumigrad.client import torch as in_torch

WIDTH, HEIGHT, VIEWS, COUNT = 40, 30, 2, 40
SIZE = {"width": WIDTH, "height": HEIGHT}
GENERATOR = np.random.default_rng(5)
TABLES = (np.linspace(0.3, -0.3, HEIGHT), np.linspace(-0.5, 0.5, WIDTH), np.zeros(HEIGHT))


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


ROLLING = {"viewmats_rs": poses(0.1)}
RAYS = GENERATOR.normal(size=(VIEWS, HEIGHT, WIDTH, 6)) * [0.3, 0.3, 0.3, 0.1, 0.1, 0.1]
RAYS[..., 5] += 1
# Of each: arrays, arrays that all cameras share, and what is fixed. Shared ones are named "<argument>.<field>".
CASES: dict[str, tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, Any]]] = {
    "pinhole": (
        {
            "radial_coeffs": np.tile([-0.2, 0.05], (VIEWS, 1)),
            "tangential_coeffs": np.tile([0.01, -0.02], (VIEWS, 1)),
            "thin_prism_coeffs": np.tile([0.01, 0.0, -0.01, 0.0], (VIEWS, 1)),
            **ROLLING,
        },
        {},
        {"rolling_shutter": "ROLLING_TOP_TO_BOTTOM"},
    ),
    "fisheye": (
        {"radial_coeffs": np.tile([0.05, -0.01, 0.0, 0.0], (VIEWS, 1))},
        {"external_distortion_coeffs.horizontal_poly": np.array([0.01, 1.02, 0.01]),
         "external_distortion_coeffs.vertical_poly": np.array([0.0, 0.01, 0.98])},
        {"camera_model": "fisheye", "global_z_order": False},
    ),
    "ftheta": (
        ROLLING,
        {"ftheta_coeffs.pixeldist_to_angle_poly": np.array([0, 1 / 40, 0, 0, 0, 0]),
         "ftheta_coeffs.angle_to_pixeldist_poly": np.array([0, 40.0, 0, -2, 0, 0]),
         "ftheta_coeffs.linear_cde": np.array([1.01, 0.01, 0.0])},
        {"camera_model": "ftheta", "rolling_shutter": "ROLLING_LEFT_TO_RIGHT"},
    ),
    "orthographic": ({}, {}, {"camera_model": "ortho"}),
    "rays": ({"rays": RAYS}, {}, {"with_eval3d": True, "outputs": ("alpha", "expected_hit_distance", "normals")}),
    "lidar": (
        {},
        dict(zip(("lidar_coeffs.row_elevations_rad", "lidar_coeffs.column_azimuths_rad",
                  "lidar_coeffs.row_azimuth_offsets_rad"), TABLES, strict=True)),
        {"camera_model": "lidar", "with_eval3d": True, "global_z_order": False, "outputs": ("alpha", "hit_distance")},
    ),
}  # fmt: skip
FACING = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]])


def parameters(module: Any, argument: str, fields: dict[str, Any]) -> Any:
    if argument == "external_distortion_coeffs":
        return module.BivariateWindshieldModelParameters(**fields)
    if argument == "lidar_coeffs":
        return module.RowOffsetStructuredSpinningLidarModelParameters(
            **fields, spinning_direction=module.SpinningDirection.COUNTER_CLOCKWISE
        )
    kind = module.FThetaPolynomialType.ANGLE_TO_PIXELDIST
    return module.FThetaCameraDistortionParameters(reference_poly=kind, max_angle=0.9, **fields)


def rendered(module: Any, arrays: dict[str, Any], fixed: dict[str, Any], client: Client) -> dict[str, Any]:
    """The images that a framework's operator returns, by name."""
    given = {name: array for name, array in arrays.items() if "." not in name}
    shared: dict[str, dict[str, Any]] = {}
    for name, array in arrays.items():
        if "." in name:
            shared.setdefault(name.partition(".")[0], {})[name.partition(".")[2]] = array
    given |= {argument: parameters(module, argument, fields) for argument, fields in shared.items()}
    fixed = dict(fixed)
    if "rolling_shutter" in fixed:
        fixed["rolling_shutter"] = module.RollingShutterType[fixed["rolling_shutter"]]
    images = module.render_gaussians(**given, **SIZE, **fixed, with_ut=True, client=client)._asdict()
    return {name: image for name, image in images.items() if image is not None}


@pytest.mark.parametrize("case", CASES)
def test_pictures_and_gradients_are_those_of_torch(case: str, client: Client) -> None:
    own, shared, fixed = CASES[case]
    arrays = {**scene(), "viewmats": poses(0.0), **own, **shared}
    if case == "lidar":
        arrays["viewmats"] = FACING @ arrays["viewmats"]
    else:
        arrays["Ks"] = np.tile([[40.0, 0, WIDTH / 2], [0, 41, HEIGHT / 2], [0, 0, 1]], (VIEWS, 1, 1))
    leaves = {name: torch.tensor(array, dtype=torch.float32).requires_grad_() for name, array in arrays.items()}
    expected = rendered(in_torch, leaves, fixed, client)
    weights = {name: GENERATOR.normal(size=image.shape).astype(np.float32) for name, image in expected.items()}
    sum((torch.tensor(weights[name]) * image).sum() for name, image in expected.items()).backward()
    assert expected["alpha"].max() > 0.3

    def loss(values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        images = rendered(in_jax, values, fixed, client)
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
    # A polynomial that is a first guess has no gradient, nor have poses in place of which rays were given.
    moving = {"means", *own, *shared, *(() if "rays" in own else ("viewmats",))}
    moving -= {"ftheta_coeffs.pixeldist_to_angle_poly"}
    assert all(np.abs(gradients[name]).max() > 0 for name in moving)


def test_moving_slices_are_those_of_torch(client: Client) -> None:
    starts, ends = np.tile(np.eye(4), (2, 1, 1)), np.tile(np.eye(4), (1, 1, 1))
    starts[:, 1, 3], ends[0, :3, 3] = (0.1, -0.2), (0.3, 0.1, -0.2)
    Ks = np.tile([[40.0, 0, WIDTH / 2], [0, 41, HEIGHT / 2], [0, 0, 1]], (VIEWS, 1, 1))
    arrays = {**scene(), "viewmats": poses(0.0), "viewmats_rs": poses(0.1), "Ks": Ks}
    weights = GENERATOR.normal(size=(VIEWS, HEIGHT, WIDTH, 3)).astype(np.float32)
    fixed = {"rolling_shutter": "ROLLING_TOP_TO_BOTTOM", "outputs": ()}

    def image(module: Any, values: dict[str, Any], first: Any, last: Any) -> Any:
        transforms = [(0, 8, first[0], None), (8, 30, first[1], last[0])]
        return rendered(module, values, {**fixed, "transforms": transforms}, client)["color"]

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
        ({"viewmats_rs": poses(0.0)}, "viewmats_rs: expected None without with_ut"),
        ({"with_ut": True, "radial_coeffs": np.zeros((VIEWS, 7))}, "1 to 6 coefficients"),
        ({"with_ut": True, "distortion": (0.1, 0, 0, 0)}, "radial_coeffs and tangential_coeffs"),
        ({"with_ut": True, "rays": RAYS}, "with_eval3d=True"),
        ({"with_ut": True, "viewmats_rs": poses(0.0)}, "None with the shutter GLOBAL"),
        ({"transforms": [(0, 5, np.eye(4), np.eye(3))]}, r"transforms\[0\]: expected shape \[4, 4\]"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], text: str, client: Client) -> None:
    Ks = np.tile(np.diag([40.0, 40, 1]), (VIEWS, 1, 1))
    with pytest.raises(InvalidArgument, match=text):
        in_jax.render_gaussians(**scene(), viewmats=poses(0.0), Ks=Ks, **SIZE, **options, client=client)
