"""Invalid arguments are refused, each by name, with the expected and the actual value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.spheres import Camera, Settings, backward, check_values, forward
from support.refusals import refused

PARAMETERS = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 2.0]
EYE = np.eye(3).tolist()


def arguments() -> dict[str, Any]:
    """The arguments of a valid call."""
    random = torch.Generator().manual_seed(1)
    return {
        "positions": torch.rand(5, 3, generator=random) + torch.tensor([0.0, 0.0, 10.0]),
        "colors": torch.rand(5, 3, generator=random),
        "radii": torch.full((5,), 0.5),
        "cameras": [Camera.pulsar(PARAMETERS, 16, 12)],
        "settings": Settings(gamma=0.1, max_depth=20.0),
    }


def test_the_call_that_the_others_spoil_works() -> None:
    assert forward(**arguments()).outputs["color"].shape == (1, 12, 16, 3)


SPOILED: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "flat positions": ("positions", {"positions": torch.rand(15)}, ("15",)),
    "two coordinates": ("positions", {"positions": torch.rand(5, 2)}, ("3", "2")),
    "double positions": ("positions", {"positions": torch.rand(5, 3, dtype=torch.float64)}, ("float32", "float64")),
    "half colours": ("colors", {"colors": torch.rand(5, 3).half()}, ("float32", "float16")),
    "more colours than spheres": ("colors", {"colors": torch.rand(6, 3)}, ("5", "6")),
    "flat colours": ("colors", {"colors": torch.rand(5)}, ()),
    "no channels": ("colors", {"colors": torch.rand(5, 0)}, ("0",)),
    "integer radii": ("radii", {"radii": torch.ones(5, dtype=torch.int32)}, ("float32", "int32")),
    "fewer radii than spheres": ("radii", {"radii": torch.ones(4)}, ("5", "4")),
    "radii in a column": ("radii", {"radii": torch.ones(5, 1)}, ()),
    "fewer opacities": ("opacities", {"opacities": torch.ones(2)}, ("5", "2")),
    "double opacities": ("opacities", {"opacities": torch.ones(5, dtype=torch.float64)}, ("float64",)),
    "background of another length": ("background", {"background": torch.ones(4)}, ("3", "4")),
    "background image": ("background", {"background": torch.ones(12, 16, 3)}, ()),
    "no cameras": ("cameras", {"cameras": []}, ()),
    "cameras of two sizes": (
        "cameras",
        {"cameras": [Camera.pulsar(PARAMETERS, 16, 12), Camera.pulsar(PARAMETERS, 12, 16)]},
        ("16", "12"),
    ),
    "unknown output": ("outputs", {"outputs": ("colour",)}, ("colour", "color")),
    "two devices": ("colors", {"colors": torch.rand(5, 3, device="meta")}, ("cpu", "meta")),
    "all on a device without an engine": (
        "positions",
        {name: torch.empty(shape, device="meta") for name, shape in (("positions", (5, 3)), ("colors", (5, 3)))}
        | {"radii": torch.empty(5, device="meta")},
        ("meta",),
    ),
    "far limit before the film": ("max_depth", {"settings": Settings(0.1, 3.0)}, ("3",)),
}


@pytest.mark.parametrize("name", SPOILED)
def test_spoiled_argument_is_named(name: str) -> None:
    argument, changes, words = SPOILED[name]
    refused(lambda: forward(**{**arguments(), **changes}), argument, *words)


OUT_OF_RANGE: dict[str, tuple[object, ...]] = {
    "gamma": (0.0, 9e-6, 1.1, math.nan, "a", None),
    "max_depth": ([20.0], math.inf, math.nan, -1.0),
    "min_depth": ("0", -1.0, math.nan),
    "semantics": ("Compat",),
    "allowed_difference": (-0.1, 1.0, "little"),
    "max_hits": (-1, 2.5),
    "n_track": (0, 129),
    "background_depth": (0.0, 1.0),
    "deterministic": ("yes",),
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name in OUT_OF_RANGE for value in OUT_OF_RANGE[name]]
)
def test_setting_out_of_range_is_named(argument: str, value: object) -> None:
    options: dict[str, Any] = {"gamma": 0.1, "max_depth": 20.0, argument: value}
    refused(lambda: forward(**{**arguments(), "settings": Settings(**options)}), argument)


def test_a_near_limit_behind_the_far_one_is_named() -> None:
    refused(lambda: Settings(0.1, 20.0, 30.0), "max_depth", "20", "30")


def test_a_near_limit_before_the_film_is_named() -> None:
    spoiled = {**arguments(), "settings": Settings(0.1, 20.0, 3.0)}
    refused(lambda: forward(**spoiled), "min_depth", "3.0", "4.0")


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("parameters", lambda: Camera.pulsar(PARAMETERS[:7], 16, 12)),
        ("parameters", lambda: Camera.pulsar([*PARAMETERS, 0.0], 16, 12)),
        ("parameters", lambda: Camera.pulsar([math.nan, *PARAMETERS[1:]], 16, 12)),
        ("focal", lambda: Camera.pulsar([*PARAMETERS[:6], 0.0, 2.0], 16, 12)),
        ("focal", lambda: Camera.pulsar(PARAMETERS, 16, 12, orthogonal=True)),
        ("sensor", lambda: Camera.pulsar([*PARAMETERS[:7], 0.0], 16, 12)),
        ("six-D rotation", lambda: Camera.pulsar([*PARAMETERS[:3], *[0.0] * 6, 4.0, 2.0], 16, 12)),
        ("six-D rotation", lambda: Camera.pulsar([*PARAMETERS[:3], 1, 2, 3, -2, -4, -6, 4.0, 2.0], 16, 12)),
        ("six-D rotation", lambda: Camera.pulsar([*PARAMETERS[:3], 0, 1, 0, 0, 1e-14, 1e-14, 4.0, 2.0], 16, 12)),
        ("width", lambda: Camera.pulsar(PARAMETERS, 0, 12)),
        ("height", lambda: Camera.pulsar(PARAMETERS, 16, -3)),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, np.eye(2).tolist(), [0.0] * 3, 16, 12)),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, (2 * np.eye(3)).tolist(), [0.0] * 3, 16, 12)),
        ("translation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, EYE, [0.0] * 2, 16, 12)),
        ("fx", lambda: Camera.opencv(0.0, 9.0, 8.0, 6.0, EYE, [0.0] * 3, 16, 12)),
        ("fy", lambda: Camera.opencv(9.0, -9.0, 8.0, 6.0, EYE, [0.0] * 3, 16, 12)),
        ("cx", lambda: Camera.opencv(9.0, 9.0, math.inf, 6.0, EYE, [0.0] * 3, 16, 12)),
    ],
)
def test_impossible_camera_is_named(argument: str, call: Callable[[], object]) -> None:
    with pytest.raises(ArgumentError) as caught:
        call()
    assert argument in f"{caught.value.argument} {caught.value}"
    assert caught.value.expected and caught.value.actual


def state(**changes: Any) -> Any:
    return forward(**{**arguments(), **changes}, retain=True).state


@pytest.mark.parametrize(
    ("argument", "gradients", "wanted"),
    [
        ("output_gradients['color']", {"color": torch.ones(1, 12, 16, 4)}, ("positions",)),
        ("output_gradients['color']", {"color": torch.ones(12, 16, 3)}, ("positions",)),
        ("output_gradients['color']", {"color": torch.ones(1, 12, 16, 3, dtype=torch.float64)}, ("positions",)),
        ("output_gradients['alpha']", {"alpha": torch.ones(1, 16, 12)}, ("positions",)),
        ("output_gradients", {"depth": torch.ones(1, 12, 16)}, ("positions",)),
        ("output_gradients", {"hits": torch.ones(1, 12, 16)}, ("positions",)),
        ("output_gradients", {}, ("positions",)),
        ("wanted", {"color": torch.ones(1, 12, 16, 3)}, ("weights",)),
        ("wanted", {"color": torch.ones(1, 12, 16, 3)}, ("positions", "alpha")),
    ],
)
def test_spoiled_backward_is_named(argument: str, gradients: dict[str, Tensor], wanted: tuple[str, ...]) -> None:
    held = state()
    refused(lambda: backward(held, gradients, wanted), argument)


@pytest.mark.parametrize("wanted", ["background", "gamma"])
def test_compat_has_no_gradient_of_settings(wanted: str) -> None:
    held = state(settings=Settings(0.1, 20.0, semantics="compat"))
    refused(lambda: backward(held, {"color": torch.ones(1, 12, 16, 3)}, (wanted,)), "wanted", wanted, "compat")


@pytest.mark.parametrize("output", ["alpha", "depth"])
def test_compat_differentiates_only_the_colour(output: str) -> None:
    held = state(settings=Settings(0.1, 20.0, semantics="compat"))
    refused(lambda: backward(held, {output: torch.ones(1, 12, 16)}, ("positions",)), "output_gradients", output)


@pytest.mark.parametrize(
    ("argument", "row", "value"),
    [
        ("radii", 3, 0.0),
        ("radii", 0, -1.0),
        ("radii", 4, math.nan),
        ("radii", 4, math.inf),
        ("positions", 2, math.nan),
        ("positions", 2, math.inf),
        ("colors", 1, math.nan),
        ("opacities", 1, 1.5),
        ("opacities", 1, -0.5),
        ("opacities", 1, math.nan),
    ],
)
def test_values_that_cannot_be_are_found(argument: str, row: int, value: float) -> None:
    call = arguments()
    tensors = {name: call[name].clone() for name in ("positions", "colors", "radii")} | {"opacities": torch.ones(5)}
    check_values(**tensors)
    tensors[argument][row] = value
    refused(lambda: check_values(**tensors), argument)


def test_values_of_nothing_are_fine() -> None:
    check_values(torch.empty(0, 3), torch.empty(0, 3), torch.empty(0), None)
