"""Settings are written once: functions that take them as arguments have the names and defaults of the dataclasses."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pytest

from lumigrad.client import (
    Camera,
    Client,
    DistanceSettings,
    Gaussians,
    GaussianSettings,
    InvalidArgument,
    Spheres,
    SphereSettings,
    Transform,
    UnscentedTransform,
    World,
)
from lumigrad.client.aio import AsyncClient
from lumigrad.client.distances.query import DistanceQuery, settings_message
from lumigrad.client.rendering.request import RenderRequest
from lumigrad.client.settings.fields import RENDER_FIELDS, GaussianFields, RenderFields, SphereFields
from lumigrad.client.wire.cameras import gaussian_settings_message, sphere_settings_message

CAMERA = Camera.look_at(eye=(0, 0, -4), target=(0, 0, 0), width=8, height=8)
SPHERES = Spheres([[0, 0, 0]], [[1, 0, 0]], [1])
GAUSSIANS = Gaussians([[0, 0, 0]], [[1, 0, 0, 0]], [[1, 1, 1]], [0.5], colors=[[1, 0, 0]])
SETTINGS = (SphereSettings, GaussianSettings, DistanceSettings)


def operators() -> dict[str, Callable[..., Any]]:
    pytest.importorskip("torch")
    pytest.importorskip("jax")
    from lumigrad.client import jax, torch

    found = {}
    for name, module in (("torch", torch), ("jax", jax)):
        found[f"{name}.render_spheres"] = module.render_spheres
        found[f"{name}.render_gaussians"] = module.render_gaussians
        found[f"{name}.mesh_distance"] = module.mesh_distance
    return found


def arguments(function: Callable[..., Any], kind: type[Any]) -> dict[str, Any]:
    """Defaults of the arguments that are settings."""
    parameters = inspect.signature(function).parameters
    return {name: parameters[name].default for name in kind.names() if name in parameters}


def defaults(kind: type[Any]) -> dict[str, Any]:
    return {
        field.name: inspect.Parameter.empty if field.default is MISSING else field.default for field in fields(kind)
    }


@pytest.mark.parametrize("library", ["torch", "jax"])
def test_operators_have_the_defaults_of_the_settings(library: str) -> None:
    found = operators()
    of_distances = arguments(found[f"{library}.mesh_distance"], DistanceSettings)
    assert of_distances == defaults(DistanceSettings)
    for name in ("render_spheres", "render_gaussians"):
        parameters = inspect.signature(found[f"{library}.{name}"]).parameters
        assert (parameters["settings"].default, parameters["fields"].kind) == (None, inspect.Parameter.VAR_KEYWORD)


@pytest.mark.parametrize("client", [Client, AsyncClient])
def test_clients_take_all_settings(client: Any) -> None:
    assert arguments(client.query, DistanceSettings) == defaults(DistanceSettings)
    for function in (client.render, client.render_batch, client.stream, client.trainer):
        parameters = inspect.signature(function).parameters
        assert (parameters["settings"].default, parameters["fields"].kind) == (None, inspect.Parameter.VAR_KEYWORD)
        assert not RENDER_FIELDS & set(parameters)
    assert len(inspect.signature(client.render).parameters) <= 12


@pytest.mark.parametrize(("kind", "told"), [(SphereSettings, SphereFields), (GaussianSettings, GaussianFields)])
def test_keyword_arguments_are_typed_as_the_fields_of_settings(kind: type[Any], told: Any) -> None:
    for field in fields(kind):
        plain = str(field.type).removesuffix(" | None")
        for known in (told.__annotations__, RenderFields.__annotations__):
            text = known[field.name].__forward_arg__ if field.name in known else ""
            assert text == "Any" or (plain in text and text.endswith(" | None")) or known is told.__annotations__
    assert set(kind.names()) - set(told.__annotations__) <= {"background", "gamma", "transforms"}
    assert set(told.__annotations__) < set(kind.names())
    assert set(RenderFields.__annotations__) == RENDER_FIELDS


class Recorder(Client):
    """Returns requests instead of sending them to a worker."""

    def _rendered(self, request: RenderRequest, *_: Any) -> Any:
        return request

    def _asked(self, query: DistanceQuery, *_: Any) -> Any:
        return query


# A value other than the default for every setting.
OTHERS: dict[type[Any], dict[str, Any]] = {
    SphereSettings: {
        "gamma": 0.5, "max_depth": 9.0, "min_depth": 0.25, "semantics": "compat", "background": (0.5, 0.25, 0.75),
        "allowed_difference": 0.125, "max_hits": 3, "n_track": 7, "background_depth": 0.5,
        "deterministic": True,
    },
    GaussianSettings: {
        "semantics": "gsplat", "sh_degree": 2, "antialiased": True, "background": (0.5, 0.25, 0.75),
        "deterministic": True, "eps2d": 0.5, "near": 0.25, "far": 8.0, "radius_clip": 2.0, "alpha_min": 0.125,
        "alpha_max": 0.5, "transmittance_min": 0.25, "pixel_center": 0.0, "scale_modifier": 2.0,
        "projection_method": "unscented", "unscented": UnscentedTransform(0.5), "depth_order": "distance",
        "tile_bounds": "gsplat", "tile_size": 8, "response": "ray", "primitive": "surfel",
        "max_error_px": 2.0, "max_gaussians": 1000, "wait": False,
    },
    DistanceSettings: {
        "semantics": "curobo", "activation_distance": 0.5, "max_distance": 2.0, "sweep": True, "samples": 8,
        "speed_metric": True, "time_step_s": 0.25, "reduction": "max", "weight": 2.0,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", SETTINGS)
def test_clients_pass_every_setting_on(kind: type[Any]) -> None:
    others = OTHERS[kind]
    expected = kind(**others)
    assert all(getattr(expected, name) != default for name, default in defaults(kind).items() if name in others)
    assert set(others) | {"transforms"} >= set(kind.names())
    client = Recorder("localhost:1")
    if kind is DistanceSettings:
        assert client.query(World([]), [[0, 0, 0, 1]], **others).settings == expected
    else:
        scene = SPHERES if kind is SphereSettings else GAUSSIANS
        assert client.render(scene, CAMERA, **others).settings == expected
        assert client.render(scene, CAMERA, settings=expected).settings is expected
        first = dict([next(iter(others.items()))])
        changed = kind(**{**others, **{name: default for name, default in defaults(kind).items() if name in first}})
        assert client.render(scene, CAMERA, settings=changed, **first).settings == expected


def test_settings_of_another_kind_of_scene_are_refused() -> None:
    client = Recorder("localhost:1")
    with pytest.raises(InvalidArgument, match="settings: expected SphereSettings for spheres, got GaussianSettings"):
        client.render(SPHERES, CAMERA, settings=GaussianSettings())
    with pytest.raises(InvalidArgument, match="near: belongs to Gaussians, but this scene is spheres; leave it out"):
        client.render(SPHERES, CAMERA, near=0.1)
    with pytest.raises(InvalidArgument, match="colour: expected a field of GaussianSettings: semantics, sh_degree"):
        client.render(GAUSSIANS, CAMERA, colour=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kind", "name", "value", "text"),
    [
        (SphereSettings, "deterministic", "no", "expected True or False, got 'no'"),
        (GaussianSettings, "deterministic", "no", "expected True or False, got 'no'"),
        (GaussianSettings, "antialiased", 2, "expected True or False, got 2"),
        (GaussianSettings, "transforms", 5, "expected Iterable, got 5; pass a list of Transform"),
        (GaussianSettings, "transforms", "ab", r"expected \(begin, end, matrix\), got str"),
    ],
)
def test_values_of_other_types_are_refused_by_name(kind: type[Any], name: str, value: Any, text: str) -> None:
    with pytest.raises(InvalidArgument, match=rf"^{name}(\[0\])?: {text}"):
        kind(**{name: value})


@pytest.mark.parametrize("gamma", [0, 0.0, -0.0, 1e-50])
def test_no_zero_stands_for_a_default_of_spheres(gamma: float) -> None:
    with pytest.raises(InvalidArgument, match=r"^gamma: expected a value in \[1e-5, 1\], got "):
        SphereSettings(gamma=gamma)
    with pytest.raises(InvalidArgument, match=r"^n_track: expected a whole number from 1 to 128, got 0"):
        SphereSettings(n_track=0)


def test_backgrounds_are_one_number_channels_or_channels_of_each_camera() -> None:
    client = Recorder("localhost:1")
    for background, expected in ((0.5, (0.5,) * 3), (1, (1.0,) * 3), ([0, 0.5, 1], (0.0, 0.5, 1.0))):
        for found in (
            client.render(GAUSSIANS, CAMERA, background=background),
            client.render(GAUSSIANS, CAMERA, settings=GaussianSettings(background=background)),
        ):
            assert found.settings.background == expected
    both = np.arange(6).reshape(2, 3)
    for given in ({"background": both}, {"settings": GaussianSettings(background=both), "near": 1}):
        assert client.render(GAUSSIANS, [CAMERA, CAMERA], **given).settings.background == (0, 1, 2, 3, 4, 5)
    for row in ([[0, 0.5, 1]], [[[0], [0.5], [1]]]):
        assert client.render(GAUSSIANS, [CAMERA, CAMERA], background=row).settings.background == (0.0, 0.5, 1.0)


def test_backgrounds_of_cameras_have_a_row_for_each() -> None:
    client, both = Recorder("localhost:1"), np.linspace(0, 1, 6).reshape(2, 3)
    column = np.linspace(0, 1, 3).reshape(3, 1)
    for background, cameras, shapes in (
        (both.T, 2, ([2, 3], [3, 2])),
        (both, 3, ([3, 3], [2, 3])),
        (column, 3, ([3, 3], [3, 1])),
        (column, 1, ([1, 3], [3, 1])),
    ):
        expected = re.escape(f"background: expected shape {shapes[0]}, a row for each camera, got {shapes[1]}")
        for settings in ({"background": background}, {"settings": GaussianSettings(background=background), "near": 1}):
            with pytest.raises(InvalidArgument, match=f"^{expected}"):
                client.render(GAUSSIANS, [CAMERA] * cameras, **settings)
    with pytest.raises(InvalidArgument, match=r"^background: expected \[D\] or \[C, D\], got shape \[2, 3, 2\]"):
        GaussianSettings(background=np.zeros((2, 3, 2)))


def test_settings_with_transforms_are_equal_if_their_numbers_are() -> None:
    def made(shift: float, **end: Any) -> GaussianSettings:
        return GaussianSettings(transforms=[Transform(0, 1, (0, 0, shift), **end)])

    assert made(0.5) == made(0.5)
    assert hash(made(0.5)) == hash(made(0.5))
    assert made(0.5) != made(0.25)
    assert made(0.5) != made(0.5, matrix_end=(0, 0, 1))
    assert made(0.5) != GaussianSettings()


def test_messages_have_every_setting() -> None:
    distances = settings_message(DistanceSettings(**OTHERS[DistanceSettings]))
    expected = {"time_step" if name == "time_step_s" else name for name in DistanceSettings.names()}
    assert {field.name for field, _ in distances.ListFields()} == expected
    spheres = sphere_settings_message(SphereSettings(**OTHERS[SphereSettings]))
    assert {field.name for field, _ in spheres.ListFields()} == set(SphereSettings.names())
    matrix = [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    gaussians = gaussian_settings_message(GaussianSettings(**OTHERS[GaussianSettings], transforms=[(0, 1, matrix)]))
    assert {field.name for field, _ in gaussians.ListFields()} == set(GaussianSettings.names())
