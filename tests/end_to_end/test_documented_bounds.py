"""Every bound that the settings document: a worker accepts or refuses the values around it as they say."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument, Mesh, Spheres
from lumigrad.client.compat.pulsar import Renderer
from support.workers.worker import WorkerProcess

CAMERA = Camera.look_at((0.0, 0.0, -4.0), (0.0, 0.0, 0.0), width=8, height=6)
PULSAR = Camera.pulsar([0.0, 0.0, -4.0, 0.0, 0.0, 0.0, 0.5, 0.5], 8, 6)
SPHERES = Spheres(np.zeros((2, 3)), np.ones((2, 3)), np.full(2, 0.5), np.array([0.0, 1.0]))
GAUSSIANS = Gaussians(
    np.array([[0.0, 0.0, 0.0], [0.3, 0.0, 0.0]]), [[1.0, 0.0, 0.0, 0.0]] * 2, np.full((2, 3), 0.3), [0.0, 1.0],
    sh=np.ones((2, 25, 3)),
)  # fmt: skip
MESH = Mesh(
    [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]], [[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]
)
QUERY = np.array([[[[0.1, 0.1, 0.1, 0.2], [2.0, 0.0, 0.0, 0.2]], [[0.2, 0.1, 0.1, 0.2], [2.0, 1.0, 0.0, 0.2]]]])
TINY = float(np.finfo(np.float32).tiny)
HUGE = 3e38


def above(value: float) -> float:
    """The next float32."""
    return float(np.nextafter(np.float32(value), np.float32(math.inf)))


def below(value: float) -> float:
    """The float32 before."""
    return float(np.nextafter(np.float32(value), np.float32(-math.inf)))


def gaussian_bounds() -> list[tuple[dict[str, Any], str | None]]:
    return [
        ({"sh_degree": 0}, None),
        ({"sh_degree": 4}, None),
        ({"sh_degree": 5}, "sh_degree"),
        ({"eps2d": 0.0}, None),
        ({"eps2d": -TINY}, "eps2d"),
        ({"near": TINY}, None),
        ({"near": 0.0}, "near"),
        ({"near": 1.0, "far": above(1.0)}, None),
        ({"near": 1.0, "far": 1.0}, "far"),
        ({"far": HUGE}, None),
        ({"far": math.inf}, None),
        ({"radius_clip": 0.0}, None),
        ({"radius_clip": -TINY}, "radius_clip"),
        ({"alpha_min": TINY}, None),
        ({"alpha_min": 0.0}, "alpha_min"),
        ({"alpha_min": 0.5, "alpha_max": above(0.5)}, None),
        ({"alpha_min": 0.5, "alpha_max": 0.5}, "alpha_max"),
        ({"alpha_max": 0.9999}, None),
        ({"alpha_max": above(0.9999)}, "alpha_max"),
        ({"transmittance_min": 0.0}, None),
        ({"transmittance_min": below(1.0)}, None),
        ({"transmittance_min": 1.0}, "transmittance_min"),
        ({"transmittance_min": -TINY}, "transmittance_min"),
        ({"pixel_center": 0.0}, None),
        ({"pixel_center": 0.5}, None),
        ({"pixel_center": above(0.5)}, "pixel_center"),
        ({"scale_modifier": TINY}, None),
        ({"scale_modifier": 0.0}, "scale_modifier"),
    ]


def sphere_bounds() -> list[tuple[dict[str, Any], str | None]]:
    return [
        ({"gamma": 1e-5}, None),
        ({"gamma": below(1e-5)}, "gamma"),
        ({"gamma": 1.0}, None),
        ({"gamma": above(1.0)}, "gamma"),
        ({"min_depth": 0.0}, None),
        ({"min_depth": -TINY}, "min_depth"),
        ({"min_depth": 1.0, "max_depth": 1.0 + 2e-6}, None),
        ({"min_depth": 1.0, "max_depth": above(1.0)}, "max_depth"),
        ({"max_depth": HUGE}, None),
        ({"max_depth": math.inf}, "max_depth"),
        ({"allowed_difference": 0.0}, None),
        ({"allowed_difference": below(1.0)}, None),
        ({"allowed_difference": 1.0}, "allowed_difference"),
        ({"allowed_difference": -TINY}, "allowed_difference"),
        ({"max_hits": 1}, None),
        ({"max_hits": 2**32 - 1}, None),
        ({"max_hits": 2**32}, "max_hits"),
        ({"n_track": 1}, None),
        ({"n_track": 128}, None),
        ({"n_track": 129}, "n_track"),
        ({"background_depth": TINY}, None),
        ({"background_depth": 0.0}, "background_depth"),
        ({"background_depth": below(1.0)}, None),
        ({"background_depth": 1.0}, "background_depth"),
    ]


def distance_bounds() -> list[tuple[dict[str, Any], str | None]]:
    swept = {"sweep": True}
    return [
        ({"activation_distance": 0.0}, None),
        ({"activation_distance": TINY}, None),
        ({"activation_distance": -TINY}, "activation_distance"),
        ({"max_distance": TINY}, None),
        ({"max_distance": 0.0}, "max_distance"),
        ({"max_distance": math.inf}, "max_distance"),
        ({**swept, "samples": 1}, None),
        ({**swept, "samples": 256}, None),
        ({**swept, "samples": 255}, "samples"),
        ({**swept, "samples": 0}, "samples"),
        ({**swept, "samples": 0, "semantics": "curobo"}, None),
        ({**swept, "samples": 255, "semantics": "curobo"}, None),
        ({**swept, "samples": 256, "semantics": "curobo"}, "samples"),
        ({"speed_metric": True, "time_step_s": TINY}, None),
        ({"speed_metric": True, "time_step_s": 0.0}, "time_step"),
        ({"weight": 0.0}, None),
        ({"weight": -HUGE}, None),
        ({"weight": math.inf}, "weight"),
    ]


def named(entry: tuple[dict[str, Any], str | None]) -> str:
    return ", ".join(f"{name}={value}" for name, value in entry[0].items())


def expect(refused: str | None, call: Any) -> None:
    """Fails unless `call` succeeds, or is refused for this setting."""
    if refused is None:
        call()
        return
    with pytest.raises(InvalidArgument) as caught:
        call()
    assert caught.value.violations[0].field.rsplit(".", 1)[-1].startswith(refused)


@pytest.mark.parametrize("semantics", ["exact", "compat"])
@pytest.mark.parametrize("bound", sphere_bounds(), ids=named)
def test_bounds_of_spheres(bound: tuple[dict[str, Any], str | None], semantics: Any, client: Client) -> None:
    settings, refused = bound
    settings = {"gamma": 0.1, "max_depth": 10.0, **settings}

    def render() -> None:
        frame = client.render(SPHERES, PULSAR, semantics=semantics, **settings)
        assert np.isfinite(frame.color).all()

    expect(refused, render)


@pytest.mark.parametrize("semantics", ["exact", "gsplat", "inria_exact"])
@pytest.mark.parametrize("bound", gaussian_bounds(), ids=named)
def test_bounds_of_gaussians(bound: tuple[dict[str, Any], str | None], semantics: Any, client: Client) -> None:
    settings, refused = bound

    def render() -> None:
        frame = client.render(GAUSSIANS, CAMERA, semantics=semantics, **settings)
        assert np.isfinite(frame.color).all()

    expect(refused, render)


@pytest.mark.parametrize("bound", distance_bounds(), ids=named)
def test_bounds_of_distances(bound: tuple[dict[str, Any], str | None], client: Client) -> None:
    settings, refused = bound

    def ask() -> None:
        assert np.isfinite(client.query(MESH, QUERY, outputs=("cost",), **settings).cost).all()

    expect(refused, ask)


@pytest.mark.filterwarnings("ignore:gamma is")
@pytest.mark.parametrize("gamma", [1e-5, 1.0])
def test_bounds_of_gamma_in_the_drop_in_of_pulsar(gamma: float, running: WorkerProcess) -> None:
    positions = torch.zeros(2, 3, requires_grad=True)
    camera = torch.tensor([0.0, 0.0, -4.0, 0.0, 0.0, 0.0, 1.0, 1.0])
    module = Renderer(8, 6, 2, target=running.target)
    image = module(positions, torch.ones(2, 3), torch.full((2,), 0.5), camera, gamma, 10.0)
    image.sum().backward()
    assert image.isfinite().all() and positions.grad is not None
