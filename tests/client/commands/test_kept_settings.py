"""Settings and their messages are kept between calls: no call ever gets those of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument, SceneNotFound, Spheres
from lumigrad.client.rendering.request import RenderRequest, fill_spec, request_of
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.settings.settings import made
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.wire.cameras import gaussian_settings_message, sphere_settings_message
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import render_pb2
from support.gaussians.clouds import post

CAMERA = Camera.look_at((0, -1, -5), (0, 0, 0), up=(0, -1, 0), width=16, height=12)
SPHERES = Spheres([[0, 0, 0]], [[1, 0.5, 0]], [1])
NUMBERS = st.sampled_from([0, 1, 2, 0.0, 0.5, 1.0, 2.0])
GAUSSIAN = st.fixed_dictionaries(
    {},
    optional={
        "near": NUMBERS,
        "eps2d": NUMBERS,
        "sh_degree": st.sampled_from([0, 1, 2.0]),
        "antialiased": st.booleans(),
        "deterministic": st.booleans(),
        "background": st.one_of(NUMBERS, st.lists(NUMBERS, min_size=3, max_size=3), st.just(np.ones(3))),
        "response": st.sampled_from(["picture", "ray"]),
        "transforms": st.sampled_from([(), ((0, 4, np.eye(4)),)]),
        "outputs": st.sampled_from(["color", ("color", "alpha"), ["depth"]]),
    },
)
SPHERE = st.fixed_dictionaries(
    {},
    optional={
        "gamma": st.sampled_from([0.1, 1, 1.0]),
        "max_depth": st.sampled_from([9, 9.0, 12.5]),
        "max_hits": st.sampled_from([1, 1.0, np.int64(1)]),
        "n_track": st.sampled_from([1, 2]),
        "background": st.one_of(NUMBERS, st.lists(NUMBERS, min_size=3, max_size=3)),
        "outputs": st.sampled_from(["color", ("color", "info")]),
    },
)


def spec_of(request: RenderRequest) -> render_pb2.RenderSpec:
    spec = render_pb2.RenderSpec()
    fill_spec(spec, request, None, PayloadWriter())
    return spec


def check(scene: Gaussians | Spheres, arguments: Mapping[str, Any], settings: Any, message: Any) -> None:
    for _ in range(2):
        request = request_of(scene, CAMERA, **arguments)
        assert repr(request.settings) == repr(settings)
        spec = spec_of(request)
        assert (spec.spheres if isinstance(scene, Spheres) else spec.gaussians) == message
        assert tuple(spec.outputs) == request.outputs


def plain(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor of settings."""
    own = {name: value for name, value in arguments.items() if name != "outputs"}
    if "background" in own:
        own["background"] = tuple(np.broadcast_to(np.float32(own["background"]), 3).tolist())
    return own


@given(GAUSSIAN)
def test_settings_of_gaussians_are_those_of_the_arguments(arguments: dict[str, Any]) -> None:
    settings = GaussianSettings(**plain(arguments))
    check(post(), arguments, settings, gaussian_settings_message(settings))


@given(SPHERE)
def test_settings_of_spheres_are_those_of_the_arguments(arguments: dict[str, Any]) -> None:
    chosen = request_of(SPHERES, CAMERA, **arguments).settings
    settings = SphereSettings(**{"gamma": 0.01, "max_depth": chosen.max_depth, **plain(arguments)})
    check(SPHERES, arguments, settings, sphere_settings_message(settings))


def test_equal_values_of_other_types_are_checked_anew() -> None:
    assert made(GaussianSettings, {"sh_degree": 1}).sh_degree == 1
    assert made(GaussianSettings, {"near": 1.0}) is made(GaussianSettings, {"near": 1.0})
    assert made(GaussianSettings, {"antialiased": 1}).antialiased is True
    assert made(GaussianSettings, {"antialiased": True}).antialiased is True
    assert made(GaussianSettings, {"antialiased": 1}) is not made(GaussianSettings, {"antialiased": True})
    for wrong in ({"near": (1.0,)}, {"near": True}) * 2:
        with pytest.raises(InvalidArgument, match="near"):
            made(GaussianSettings, wrong)


def test_values_that_change_are_read_at_each_call() -> None:
    near, background = np.array(0.5), np.zeros(3)
    arguments = {"near": near, "background": background}
    assert request_of(post(), CAMERA, **arguments).settings.near == 0.5
    near[...], background[:] = 0.25, 1
    settings = request_of(post(), CAMERA, **arguments).settings
    assert (settings.near, settings.background) == (0.25, (1, 1, 1))


def test_a_changed_request_has_its_own_message() -> None:
    request = request_of(post(), CAMERA, near=0.5)
    other = replace(request, outputs=("alpha",), settings=replace(request.settings, near=0.25))
    assert (spec_of(other).gaussians.near, tuple(spec_of(other).outputs)) == (0.25, ("alpha",))
    assert (spec_of(request).gaussians.near, tuple(spec_of(request).outputs)) == (0.5, ("color",))


def test_calls_follow_a_scene_that_is_updated_and_deleted(client: Client) -> None:
    scene = client.put(SPHERES)
    first = client.render(scene, CAMERA, max_depth=9.0)
    updated = client.update(scene, colors=SPHERES.colors / 2)
    second = client.render(updated, CAMERA, max_depth=9.0)
    assert not np.array_equal(first.color, second.color)
    np.testing.assert_array_equal(second.color, client.render(updated.scene, CAMERA, max_depth=9.0).color)
    found = client.get(updated.scene_id)
    client.delete(updated)
    with pytest.raises(SceneNotFound):
        client.render(found, CAMERA, max_depth=9.0)
