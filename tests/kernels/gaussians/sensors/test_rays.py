"""Gaussians along rays: images and every gradient as the reference computes them, on each engine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.gaussians import (
    Camera,
    FisheyeLens,
    FThetaLens,
    Gaussians,
    PinholeLens,
    SensorLens,
    Settings,
    UnscentedTransform,
    backward,
    forward,
)
from support import refusals
from support.backends.gaussian_engines import Engine
from support.closeness import assert_image, assert_relative
from support.gaussians.sensor_cases import (
    CASES,
    IMAGES,
    RAY_CASES,
    START,
    Known,
    assert_as_known,
    given_rays,
    known,
    reference,
    run,
    scene,
)


@cache
def expected(name: str) -> Known:
    return known(*reference(RAY_CASES[name]))


@pytest.mark.parametrize("name", RAY_CASES)
def test_images_and_gradients_along_rays_are_those_of_the_reference(name: str, gaussian_engine: Engine) -> None:
    assert_as_known(RAY_CASES[name], gaussian_engine, expected(name))


@pytest.mark.parametrize("channels", [1, 3, 5])
@pytest.mark.parametrize("name", ["opencv", "rolling up"])
def test_colors_alone_are_as_with_other_outputs(name: str, channels: int, gaussian_engine: Engine) -> None:
    """The loops for three channels, for other numbers of channels and with further features agree."""
    case = RAY_CASES[name]
    tensors = {**case.scene, "colors": case.scene["colors"][:, [0, 1, 2, 0, 1][:channels]].contiguous()}
    wanted = ("means", "scales", "colors", "cameras", "lenses")
    made = []
    for names in (("color",), ("color", "depth", "normals", "contributors")):
        outputs, state = gaussian_engine.forward(
            Gaussians(**tensors), [case.camera()], Settings(**case.settings), outputs=names, retain=True
        )
        upstream = {"color": torch.linspace(-1, 1, outputs["color"].numel()).reshape(outputs["color"].shape)}
        made.append((outputs["color"].numpy(), gaussian_engine.backward(state, upstream, wanted)[0]))
    (alone, of_alone), (together, of_together) = made
    assert_image(alone, together, 1e-6)
    for key, gradient in of_alone.items():
        assert_relative(key, gradient, of_together[key].numpy(), 1e-4, 1e-6)


def test_gsplat_semantics_send_gradients_through_the_response_only(gaussian_engine: Engine) -> None:
    upstream = expected("rolling")[2]
    frozen = replace(RAY_CASES["rolling"], settings={"semantics": "gsplat", "response": "ray"})
    found = run(gaussian_engine, frozen, upstream)
    exact = run(gaussian_engine, RAY_CASES["rolling"], upstream)
    assert not found.gradients["camera_intrinsics"].any()
    for name in ("opacities", "sh", "quats", "scales"):
        np.testing.assert_allclose(found.gradients[name], exact.gradients[name], rtol=1e-4, atol=1e-5)
    assert found.gradients["means"].any()


def test_gsplat_semantics_have_no_gradient_of_distances_and_normals_where_alpha_is_clamped(
    gaussian_engine: Engine,
) -> None:
    """A quirk of gsplat (sensors spec section 9): saturated Gaussians have only gradients of their blended features."""
    opaque = {name: value[:1].clone() for name, value in scene(1).items()}
    opaque["means"][0], opaque["opacities"][0] = torch.tensor([0.0, 0.0, 2.0]), 1.0
    opaque["scales"][0], opaque["quats"][0] = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.9, 0.3, -0.2, 0.1])
    case = replace(RAY_CASES["given"], scene=opaque)
    gradients = {}
    for semantics in ("exact", "gsplat"):
        settings = {**case.settings, "semantics": semantics}
        alpha = run(gaussian_engine, replace(case, settings=settings), {"alpha": torch.ones(36, 48)}).outputs["alpha"]
        clamped = torch.from_numpy(alpha > 0.98999).float()
        assert 5 < clamped.sum() < clamped.numel() / 2
        upstream = {"hit_distance": clamped, "normals": clamped[..., None].expand(-1, -1, 3).contiguous()}
        gradients[semantics] = run(gaussian_engine, replace(case, settings=settings), upstream).gradients
    for name in ("means", "quats", "rays"):
        assert np.abs(gradients["exact"][name]).max() > 1e-3, name
        assert not gradients["gsplat"][name].any(), name


@pytest.mark.parametrize("response", ["picture", "ray"])
def test_gradients_are_slopes_of_the_loss(response: str, gaussian_engine: Engine) -> None:
    """Compares slopes along one random direction of all parameters of the scene."""
    base = replace(CASES["rolling up"], settings={"response": response, "alpha_min": 1e-7, "transmittance_min": 0.0})
    random = torch.Generator().manual_seed(8)
    weights = {"color": torch.rand(36, 48, 3, generator=random), "depth": torch.rand(36, 48, generator=random)}
    way = {name: torch.randn(value.shape, generator=random) * 0.02 for name, value in base.scene.items()}
    step = 0.05

    def loss(sign: float) -> float:
        moved = {name: value + sign * step * way[name] for name, value in base.scene.items()}
        made = run(gaussian_engine, replace(base, scene=moved), weights)
        return sum(float((made.outputs[name] * v.double().numpy()).sum()) for name, v in weights.items())

    slope = (loss(1.0) - loss(-1.0)) / (2 * step)
    gradients = run(gaussian_engine, base, weights).gradients
    predicted = sum(float((gradients[name] * v.double().numpy()).sum()) for name, v in way.items())
    assert abs(predicted - slope) < 5e-3 * abs(slope), f"{predicted} instead of {slope}"


@pytest.mark.parametrize("name", ["opencv", "rolling fisheye", "ftheta", "orthographic"])
def test_conservative_bounds_leave_nothing_out(name: str, gaussian_engine: Engine) -> None:
    """Many small and long Gaussians have the images of the reference, which has no bounds."""
    many = scene(120, seed=9)
    many["scales"] = many["scales"] * torch.tensor([0.05, 0.3, 1.5])
    case = replace(RAY_CASES[name], scene=many)
    images = reference(case)[0]
    upstream = {"alpha": torch.ones(case.height, case.width)}
    found, stable = run(gaussian_engine, case, upstream), images["stable"].numpy()
    assert_image(found.outputs["alpha"][stable], images["alpha"].detach().numpy()[stable], 1e-4)


def test_extreme_scenes_along_rays_give_finite_results(gaussian_engine: Engine) -> None:
    tensors = {
        "means": [[0.1, -0.2, 3.0], [0.1, 0.0, -3.0], [0.3, 0.2, 0.02], [1e8, 0.0, 1e8], [0.0, 0.0, 4.0]],
        "quats": [[1.0, 0.2, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0], [1.0] * 4, [1e-20, 0.0, 0.0, 0.0]],
        "scales": [[0.5, 0.5, 0.0], [1e4, 1e3, 1e4], [2.0, 2.0, 2.0], [1e-6, 1e-6, 1e-6], [1e-5, 5.0, 5.0]],
        "opacities": [1.0, 0.5, 0.9, 1.0, 0.999],
        "colors": [[0.2, 0.4, 0.6]] * 5,
    }
    small = {key: torch.tensor(value, dtype=torch.float32) for key, value in tensors.items()}
    upstream = {name: torch.ones(36, 48, 3) if name in ("color", "normals") else torch.ones(36, 48) for name in IMAGES}
    bounds_of = {"pinhole": "gsplat", "rolling up": "conservative", "ftheta": "gsplat", "orthographic": "conservative"}
    for name, bounds in bounds_of.items():
        settings = {"response": "ray", "tile_bounds": bounds}
        made = run(gaussian_engine, replace(CASES[name], scene=small, settings=settings), upstream)
        for key, value in {**made.outputs, **made.gradients}.items():
            assert np.isfinite(value).all(), f"{name}: {key} with {bounds}"


def test_what_makes_no_sense_along_rays_is_refused() -> None:
    case = CASES["windshield"]
    tensors, cameras = Gaussians(**case.scene), [case.camera()]
    plain = [CASES["pinhole"].camera()]
    along = Settings(response="ray")

    def refused(argument: str, *words: str, **call: Any) -> None:
        given = {"gaussians": tensors, "cameras": plain, "settings": along, **call}
        refusals.refused(lambda: forward(**given), argument, *words)

    refused("windshield", "horizontal_inverse", cameras=cameras)
    refused("outputs", "normals", "picture", settings=Settings(), outputs=("normals",))
    refused("rays", "picture", settings=Settings(), rays=given_rays()[None])
    refused("rays", "[1, 36, 48, 6]", rays=given_rays())
    refused("rays", "other than 0", rays=torch.zeros(1, 36, 48, 6))
    state = forward(tensors, plain, along, retain=True).state
    for wanted in ("means2d", "rays"):
        with pytest.raises(ArgumentError, match="wanted"):
            backward(state, {"color": torch.zeros(1, 36, 48, 3)}, (wanted,))
    with pytest.raises(ArgumentError, match="response"):
        Settings(response="film")
    with pytest.raises(ArgumentError, match="tile_size"):
        Settings(tile_size=5)


@pytest.mark.parametrize(
    "lens",
    [
        PinholeLens(fx=250.0, fy=240.0, cx=150.0, cy=110.0, radial=(0.1, -0.05)),
        # The corners of the image are beyond what this lens shows.
        PinholeLens(fx=250.0, fy=240.0, cx=150.0, cy=110.0, radial=(-0.3,), tangential=(0.002, -0.001)),
        FisheyeLens(fx=110.0, fy=110.0, cx=160.0, cy=120.0, radial=(0.02,)),
        FThetaLens(cx=160.0, cy=120.0, max_angle=2.9, angle_to_pixel_distance=(0.0, 70.0, 0.0, -0.5)),
    ],
    ids=lambda lens: type(lens).__name__,
)
def test_large_images_are_put_together_from_small_ones(lens: SensorLens, gaussian_engine: Engine) -> None:
    """The pixels that Gaussians reach are found part by part of an image; other parts must give the same image."""
    random = torch.Generator().manual_seed(4)
    tensors = {
        "means": 3.0 * torch.randn(400, 3, generator=random),
        "quats": torch.randn(400, 4, generator=random),
        "scales": torch.exp(-6.0 + 6.0 * torch.rand(400, 3, generator=random)),
        "opacities": 0.05 + 0.9 * torch.rand(400, generator=random),
        "colors": torch.rand(400, 3, generator=random),
    }
    settings = Settings(response="ray", unscented=UnscentedTransform(margin=1e3))

    def draw(x: int, y: int, width: int, height: int) -> np.ndarray:
        moved = replace(lens, cx=lens.cx - x, cy=lens.cy - y)
        camera = Camera.sensor(moved, START[:3, :3], START[:3, 3], width, height)
        return gaussian_engine.forward(Gaussians(**tensors), [camera], settings)[0]["color"][0].numpy()

    whole = draw(0, 0, 320, 240)
    assert (whole > 0.05).mean() > 0.3, "there is something to see"
    for x, y in ((0, 0), (117, 55), (128, 64), (250, 180), (31, 207)):
        assert_image(draw(x, y, 40, 24), whole[y : y + 24, x : x + 40], 2e-5)


def test_pixels_at_the_rim_of_a_lens_do_not_depend_on_where_tiles_begin() -> None:
    """The distortion folds back beyond the rim, where a search for a pixel's direction can end on the other side."""
    edge, radial = 1920, (-0.304, 0.03)
    radii = np.linspace(0.0, 1.3, 10001)
    focal = edge / 2 / (1.02 * (radii * (1 + radial[0] * radii**2 + radial[1] * radii**4)).max())
    x, y = torch.meshgrid(torch.linspace(-6, 6, 41), torch.linspace(-6, 6, 41), indexing="xy")
    count = x.numel()
    scene = Gaussians(
        means=torch.stack([x.flatten(), y.flatten(), torch.full((count,), 4.0)], dim=-1),
        opacities=torch.full((count,), 0.9),
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(count, 1),
        scales=torch.full((count, 3), 0.4),
        colors=torch.ones(count, 3),
    )

    def draw(right: int, down: int) -> np.ndarray:
        centre = {"cx": edge / 2 + right, "cy": edge / 2 + down}
        lens = PinholeLens(fx=focal, fy=focal, **centre, radial=radial, tangential=(0.0009, -0.001))
        camera = Camera.sensor(lens, np.eye(3), np.zeros(3), edge + right, edge + down)
        alpha = forward(scene, [camera], Settings(response="ray"), outputs=("alpha",)).outputs["alpha"]
        return alpha[0, down:, right:].numpy()

    expected = draw(0, 0)
    assert 0.6 < (expected > 0.05).mean() < 0.9, "the corners are beyond the rim"
    # An alpha next to alpha_min may fall on either side.
    assert_image(draw(5, 3), expected, 5e-3)
