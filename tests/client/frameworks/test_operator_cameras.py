"""Operators draw what `Client.render` draws with the same cameras and settings, and refuse what does not fit them."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import (
    Camera,
    Client,
    FisheyeLens,
    Gaussians,
    GaussianSettings,
    InvalidArgument,
    Spheres,
    SphereSettings,
    Transform,
)
from lumigrad.client import jax as in_jax
from lumigrad.client import torch as in_torch

COUNT, SIZE = 30, (40, 30)
MODULES = pytest.mark.parametrize("module", [in_torch, in_jax], ids=["torch", "jax"])
MOVED = np.array([[1.0, 0, 0, 0.4], [0, 1, 0, 0.2], [0, 0, 1, 0], [0, 0, 0, 1]])
FILM = {"fx": 20.0, "fy": 20.0, "cx": 20.0, "cy": 15.0}
POSE = np.eye(3), (0.0, 0.0, 3.0)


def gaussians(*batch: int) -> Gaussians:
    random = np.random.default_rng(2)
    return Gaussians(
        random.normal(size=(*batch, COUNT, 3)) * [0.9, 0.9, 0.5],
        random.normal(size=(*batch, COUNT, 4)),
        random.uniform(0.1, 0.3, (*batch, COUNT, 3)),
        random.uniform(0.5, 0.9, (*batch, COUNT)),
        colors=random.uniform(size=(*batch, COUNT, 3)),
    )


def arrays(module: Any, scene: Any) -> dict[str, Any]:
    return {name: torch.tensor(array) if module is in_torch else array for name, array in scene.tensors.items()}


def assert_as_client(module: Any, client: Client, camera: Camera, **options: Any) -> None:
    """Fails unless the operator draws what the client draws."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = module.render_gaussians(**arrays(module, gaussians()), camera=camera, **options, client=client).color
    expected = client.render(gaussians(), camera, **options).color
    np.testing.assert_allclose(np.asarray(found)[0], expected, atol=1e-5)


@MODULES
def test_transforms_of_settings_place_slices(module: Any, client: Client) -> None:
    camera = Camera.opencv(**FILM, rotation=POSE[0], translation=POSE[1], width=SIZE[0], height=SIZE[1])
    settings = GaussianSettings(transforms=[Transform(0, 10, MOVED)])
    assert_as_client(module, client, camera, settings=settings)
    # Transforms that are passed by name replace those of the settings.
    assert_as_client(module, client, camera, settings=settings, transforms=[(5, 20, MOVED)])


def test_transforms_of_settings_place_surfels(client: Client) -> None:
    camera = Camera.opencv(**FILM, rotation=POSE[0], translation=POSE[1], width=SIZE[0], height=SIZE[1])
    settings = GaussianSettings(transforms=[Transform(0, 10, MOVED)], primitive="surfel")
    tensors = arrays(in_torch, gaussians())
    found = in_torch.render_gaussians_2d(**tensors, camera=camera, settings=settings, client=client).color
    np.testing.assert_array_equal(found[0], client.render(gaussians(), camera, settings=settings).color)


@MODULES
@pytest.mark.parametrize("limits", [{"max_angle": 0.4}, {"behind": True, "max_angle": 2.4}], ids=str)
def test_fisheyes_keep_their_limits(module: Any, limits: dict[str, Any], client: Client) -> None:
    # The camera is inside the scene, part of which lies behind it.
    camera = Camera.sensor(FisheyeLens(**FILM | {"fx": 8.0, "fy": 8.0}, **limits), np.eye(3), np.zeros(3), *SIZE)
    assert_as_client(module, client, camera, depth_order="distance")


def test_cameras_with_distortion_show_every_scene_of_a_batch(client: Client) -> None:
    cameras = [
        Camera.opencv(**FILM, rotation=POSE[0], translation=POSE[1], width=40, height=30, distortion=distortion)
        for distortion in ((0.1, 0.01, 0.0, 0.0), ())
    ]
    scenes = gaussians(2)
    tensors = arrays(in_torch, scenes)
    found = in_torch.render_gaussians(**tensors, camera=cameras, client=client).color
    stored = in_torch.render_gaussians(scene=client.put(scenes), camera=cameras, client=client).color
    expected = client.render(scenes, [*cameras, *cameras]).color
    np.testing.assert_array_equal(found.flatten(0, 1), expected)
    np.testing.assert_array_equal(stored.flatten(0, 1), expected)


@MODULES
@pytest.mark.parametrize("background", [0.25, 1])
def test_a_background_of_spheres_may_be_one_number(module: Any, background: float, client: Client) -> None:
    camera = Camera.opencv(**FILM, rotation=POSE[0], translation=POSE[1], width=SIZE[0], height=SIZE[1])
    scene = Spheres(gaussians().means, gaussians().colors, np.full(COUNT, 0.2))
    settings = SphereSettings(max_depth=10.0)
    tensors = arrays(module, scene)
    found = module.render_spheres(**tensors, cam_params=camera, settings=settings, background=background, client=client)
    expected = client.render(scene, camera, settings=settings, background=background).color
    np.testing.assert_allclose(np.asarray(found.color), expected, atol=1e-6)


@MODULES
def test_cameras_that_are_none_or_too_few_are_refused_by_name(module: Any, client: Client) -> None:
    tensors = arrays(module, gaussians())
    camera = Camera.opencv(
        **FILM, rotation=POSE[0], translation=POSE[1], width=40, height=30, distortion=(0.1, 0, 0, 0)
    )
    matrices = {"viewmats": np.tile(np.eye(4), (3, 1, 1)), "Ks": np.tile(camera.K, (3, 1, 1))}
    with pytest.raises(InvalidArgument, match=r"^camera: expected Camera"):
        module.render_gaussians(**tensors, camera=5, client=client)
    with pytest.raises(InvalidArgument, match=r"^viewmats: expected one for each camera, of which there are 1, got 3"):
        module.render_gaussians(**tensors, camera=camera, **matrices, client=client)


@MODULES
def test_no_matrices_are_refused_by_name(module: Any, client: Client) -> None:
    empty = {"viewmats": np.zeros((0, 4, 4)), "Ks": np.zeros((0, 3, 3)), "width": SIZE[0], "height": SIZE[1]}
    with pytest.raises(InvalidArgument, match=r"^viewmats: expected at least one, got shape \[0, 4, 4\]"):
        module.render_gaussians(**arrays(module, gaussians()), **empty, client=client)
