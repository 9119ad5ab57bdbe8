"""Errors of ordinary mistakes name the user's own argument or file, and the cause."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians, GaussianSettings, InvalidArgument, Mesh, Spheres, TargetImage
from lumigrad.client.base.arrays import to_numpy
from lumigrad.client.compat.gsplat import rasterization
from lumigrad.client.formats import load_gaussians
from lumigrad.client.robots.motion import Motion
from lumigrad.client.torch import render_gaussians, render_gaussians_2d
from support.gaussians.clouds import post

CAMERA = Camera.look_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), width=8, height=6)
SCENE = {
    "means": np.zeros((3, 3)),
    "quats": np.ones((3, 4)),
    "scales": np.ones((3, 3)),
    "opacities": np.ones(3),
    "sh": np.ones((3, 4, 3)),
}


def with_nan(arrays: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    changed = arrays[name].copy()
    changed.flat[0] = np.nan
    return {**arrays, name: changed}


@pytest.mark.parametrize("name", ["means", "quats", "sh"])
def test_values_that_are_not_finite_are_found_in_the_users_array(client: Client, name: str) -> None:
    gaussians = Gaussians(**with_nan(SCENE, name))
    calls: list[Callable[[], Any]] = [lambda: client.render(gaussians, CAMERA), lambda: client.put(gaussians)]
    for call in calls:
        with pytest.raises(InvalidArgument, match=f"^{name}: expected finite values") as caught:
            call()
        assert caught.value.violations[0].field == name
    spheres = Spheres(np.full((1, 3), np.nan), np.ones((1, 3)), np.ones(1))
    with pytest.raises(InvalidArgument, match=r"^positions: expected finite values"):
        client.render(spheres, CAMERA, gamma=0.1, max_depth=5.0)


def test_masked_values_are_not_taken_for_their_data(client: Client) -> None:
    positions = np.ma.masked_greater(np.arange(6.0).reshape(2, 3), 4.0)
    text = r"^positions: expected values everywhere, got an array with 1 of 6 masked; pass array.filled\(number\)"
    with pytest.raises(InvalidArgument, match=text):
        Spheres(positions, np.ones((2, 3)), np.ones(2))
    frame = client.render(Spheres(positions.filled(0.0), np.ones((2, 3)), np.ones(2)), CAMERA, retain=True)
    gradient = np.ma.masked_array(np.ones_like(frame.color), mask=frame.color > 2)
    assert frame.backward(color=gradient).positions.shape == (2, 3)
    gradient[0, 0] = np.ma.masked
    with pytest.raises(InvalidArgument, match=r"^color: expected values everywhere"):
        frame.backward(color=gradient)
    with pytest.raises(InvalidArgument, match=r"^color: .* masked"):
        TargetImage(gradient)
    singles = [[np.ma.masked if is_masked else float(value) for value, is_masked in zip(row, mask, strict=True)]
               for row, mask in zip(positions.data, positions.mask, strict=True)]  # fmt: skip
    for several, count in ((list(positions), 3), (tuple(positions), 3), ([tuple(row) for row in positions], 1),
                           (singles, 1)):  # fmt: skip
        with pytest.raises(InvalidArgument, match=rf"^positions: .* with 1 of {count} masked"):
            Spheres(several, np.ones((2, 3)), np.ones(2))
    rows = np.ma.masked_equal(np.eye(3), 1.0)
    with pytest.raises(InvalidArgument, match=r"^coefficients: .* with 1 of 3 masked"):
        to_numpy("coefficients", [[[list(rows)]], [[list(np.eye(3))]]])
    with pytest.raises(InvalidArgument, match=r"^faces: .* masked"):
        Mesh(np.eye(3), np.ma.masked_equal([[0, 1, 2]], 2))


def tensors() -> dict[str, torch.Tensor]:
    intrinsics = torch.tensor([[[8.0, 0.0, 4.0], [0.0, 8.0, 3.0], [0.0, 0.0, 1.0]]])
    own = {name: torch.from_numpy(array).float() for name, array in SCENE.items() if name != "sh"}
    return {**own, "colors": torch.ones(3, 4, 3), "viewmats": torch.eye(4)[None], "Ks": intrinsics}


@pytest.mark.parametrize("render", [render_gaussians, rasterization])
def test_a_forgotten_degree_of_harmonics_is_named(render: Callable[..., Any]) -> None:
    text = r"^colors: expected shape \[3, D\] or \[1, 3, D\], got \[3, 4, 3\]; pass sh_degree if these are coefficients"
    with pytest.raises(InvalidArgument, match=text):
        render(**tensors(), width=8, height=6)


def test_tensors_without_values_are_called_that(client: Client) -> None:
    given = {**tensors(), "means": torch.zeros(3, 3, device="meta")}
    with pytest.raises(InvalidArgument, match=r"^means: expected a tensor with values, got one on the device meta"):
        render_gaussians(**given, width=8, height=6, sh_degree=1, client=client)


@pytest.mark.parametrize("text", ["abc\n", "", "# nothing\n", "x,y,z\n"])
def test_a_file_without_numbers_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "points.csv"
    path.write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        Motion.load(path)
    assert str(caught.value) == f"spheres: {path}: expected numbers: at least one line of them, got none"


def test_an_archive_of_arrays_is_no_scene(tmp_path: Path) -> None:
    path = tmp_path / "scene.npz"
    np.savez(path, **SCENE)
    with pytest.raises(InvalidArgument) as caught:
        load_gaussians(path)
    assert str(caught.value).startswith(f"path: {path}: expected a scene of Gaussians (.ply, ")
    assert str(caught.value).endswith(", got arrays of NumPy, which are no scene file")


def test_cameras_in_place_of_matrices_are_told_what_to_pass() -> None:
    jax_functions = pytest.importorskip("lumigrad.client.jax", reason="no JAX: pip install 'lumigrad[jax]'")
    for function in (render_gaussians, jax_functions.render_gaussians):
        for given, got in ((CAMERA, "a Camera"), ([CAMERA], "cameras")):
            with pytest.raises(InvalidArgument, match=rf"^viewmats: expected a tensor, got {got}; pass it as camera="):
                function(**{**tensors(), "viewmats": given}, sh_degree=0, width=8, height=6)


@pytest.mark.parametrize("background", [(255, 255, 255), 128, np.array([0, 0, 9], np.uint8)], ids=str)
def test_levels_of_backgrounds_are_called_that(client: Client, background: Any) -> None:
    with pytest.warns(UserWarning, match="background: expected colours with 1 for white, got u?int"):
        client.render(post(), Camera.look_at((0, 0, -4), (0, 0, 0), width=8, height=8), background=background)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for usual in ((1, 1, 1), 0, 1.0, (0.5, 0.25, 0)):
            client.render(post(), Camera.look_at((0, 0, -4), (0, 0, 0), width=8, height=8), background=usual)


def test_radians_in_place_of_degrees_are_called_that() -> None:
    with pytest.warns(UserWarning, match=r"fov_degrees: expected degrees, got 0\.8; are they radians\?"):
        Camera.look_at((0, 0, -4), (0, 0, 0), fov_degrees=0.8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Camera.orbit((0, 0, 0), 4, 30, 20, fov_degrees=4)


def test_backgrounds_are_channels_of_each_camera_of_all_or_one_number(client: Client) -> None:
    jax_functions = pytest.importorskip("lumigrad.client.jax", reason="no JAX: pip install 'lumigrad[jax]'")
    own = {**tensors(), "colors": torch.ones(3, 3)}
    calls: list[Callable[..., Any]] = [render_gaussians, jax_functions.render_gaussians, render_gaussians_2d]
    for function in calls:
        given = {**own, "scales": own["scales"][:, :2]} if function is render_gaussians_2d else own
        size = {"width": 8, "height": 6, "client": client}
        backgrounds = (torch.full((3,), 0.25), torch.full((1, 3), 0.25), 0.25)
        pictures = [np.asarray(function(**given, **size, background=each).color) for each in backgrounds]
        kept = function(**given, **size, settings=GaussianSettings(background=0.25))
        for picture in (*pictures[1:], np.asarray(kept.color)):
            np.testing.assert_array_equal(picture, pictures[0])
        with pytest.raises(InvalidArgument, match=r"^background: expected shape"):
            function(**given, **size, background=torch.zeros(4))
