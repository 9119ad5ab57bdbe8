"""Invalid arguments, settings, cameras and transforms are refused by name, with the expected and actual value."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from lumigrad.kernels.gaussians import Camera, Gaussians, Settings, State, Transform, backward, check_values, forward
from support.refusals import refused

EYE = np.eye(3).tolist()
FRAME = np.eye(4)


def scene(**changes: Tensor | None) -> Gaussians:
    """Five Gaussians in front of the camera, with changes."""
    random = torch.Generator().manual_seed(1)
    tensors: dict[str, Any] = {
        "means": torch.rand(5, 3, generator=random) + torch.tensor([0.0, 0.0, 4.0]),
        "quats": torch.rand(5, 4, generator=random),
        "scales": torch.rand(5, 3, generator=random),
        "opacities": torch.rand(5, generator=random),
        "colors": torch.rand(5, 3, generator=random),
    }
    return Gaussians(**{**tensors, **changes})


def view(width: int = 16, height: int = 12, **options: Any) -> Camera:
    return Camera.opencv(9.0, 9.0, 8.0, 6.0, EYE, [0.0] * 3, width, height, **options)


def inria(**changes: Any) -> Camera:
    given = {"view_matrix": FRAME, "full_projection": FRAME, "position": [0.0] * 3, "tan_fov_x": 0.5, "tan_fov_y": 0.5}
    return Camera.inria(**{**given, "width": 16, "height": 12, **changes})


def render(**changes: Any) -> Any:
    given: dict[str, Any] = {"gaussians": scene(), "cameras": [view()], "settings": Settings(), **changes}
    return forward(given.pop("gaussians"), given.pop("cameras"), given.pop("settings"), **given)


def moved(begin: int, end: int) -> Transform:
    return Transform(begin, end, FRAME)


def test_the_call_that_the_others_spoil_works() -> None:
    assert render().outputs["color"].shape == (1, 12, 16, 3)


TENSORS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "flat means": ("means", {"means": torch.rand(15)}, ("15",)),
    "no tensor": ("means", {"means": [[0.0, 0.0, 4.0]]}, ("list",)),
    "two coordinates": ("means", {"means": torch.rand(5, 2)}, ("3", "2")),
    "double means": ("means", {"means": torch.rand(5, 3, dtype=torch.float64)}, ("float32", "float64")),
    "no scenes": ("means", {"means": torch.rand(0, 5, 3)}, ("0",)),
    "fewer opacities": ("opacities", {"opacities": torch.rand(4)}, ("5", "4")),
    "opacities in a column": ("opacities", {"opacities": torch.rand(5, 1)}, ()),
    "three-part quaternions": ("quats", {"quats": torch.rand(5, 3)}, ("4", "3")),
    "half scales": ("scales", {"scales": torch.rand(5, 3).half()}, ("float16",)),
    "one scale each": ("scales", {"scales": torch.rand(5)}, ()),
    "no shape at all": ("quats", {"quats": None, "scales": None}, ("none", "covariances")),
    "no scales": ("quats", {"scales": None}, ("scales",)),
    "shape twice": ("quats", {"covariances": torch.rand(5, 6)}, ("covariances",)),
    "covariance matrices": ("covariances", {"quats": None, "scales": None, "covariances": torch.rand(5, 3, 3)}, ("6",)),
    "no colours": ("colors", {"colors": None}, ("none", "sh")),
    "colours twice": ("colors", {"sh": torch.rand(5, 1, 3)}, ("sh and colors",)),
    "no channels": ("colors", {"colors": torch.rand(5, 0)}, ("0",)),
    "colours of other Gaussians": ("colors", {"colors": torch.rand(6, 3)}, ("5", "6")),
    "flat colours": ("colors", {"colors": torch.rand(5)}, ()),
    "five coefficients": ("sh", {"colors": None, "sh": torch.rand(5, 5, 3)}, ("16", "5, 5, 3")),
    "flat coefficients": ("sh", {"colors": None, "sh": torch.rand(5, 48)}, ("48",)),
    "two devices": ("colors", {"colors": torch.rand(5, 3, device="meta")}, ("cpu", "meta")),
}


@pytest.mark.parametrize("name", TENSORS)
def test_spoiled_tensor_is_named(name: str) -> None:
    argument, changes, words = TENSORS[name]
    refused(lambda: scene(**changes), argument, *words)


INRIA = Settings(semantics="inria_exact")
# Refused calls: the argument that is named, the call, and words of the error.
CALLS: dict[str, tuple[str, Callable[[], object], tuple[str, ...]]] = {
    "no cameras": ("cameras", lambda: render(cameras=[]), ("none",)),
    "cameras of two sizes": ("cameras", lambda: render(cameras=[view(16, 12), view(12, 16)]), ("16", "12")),
    "one and a half cameras each": ("cameras", lambda: render(gaussians=batched(2), cameras=[view()] * 3), ("2", "3")),
    "fisheye as Inria": (
        "cameras",
        lambda: render(cameras=[view(model="fisheye")], settings=INRIA),
        ("inria_exact", "fisheye"),
    ),
    "distortion as Inria": (
        "cameras",
        lambda: render(cameras=[view(distortion=[0.1, 0, 0, 0])], settings=Settings(semantics="inria_depth")),
        ("distortion",),
    ),
    "colours of other cameras": (
        "colors",
        lambda: render(gaussians=scene(colors=torch.rand(3, 5, 3)), cameras=[view()] * 2),
        ("2", "3"),
    ),
    "unknown output": ("outputs", lambda: render(outputs=("colour",)), ("colour", "color")),
    "background of another length": ("background", lambda: render(background=torch.ones(4)), ("3", "4")),
    "backgrounds of other cameras": ("background", lambda: render(background=torch.ones(2, 3)), ("1", "2")),
    "background as a list": ("background", lambda: render(background=[0.0, 0.0, 0.0]), ("list",)),
    "double background": ("background", lambda: render(background=torch.ones(3, dtype=torch.float64)), ("float64",)),
    "degree for colours": ("sh_degree", lambda: render(settings=Settings(sh_degree=0)), ("colors", "0")),
    "degree that is not stored": (
        "sh_degree",
        lambda: render(gaussians=scene(colors=None, sh=torch.rand(5, 9, 3)), settings=Settings(sh_degree=3)),
        ("2", "3"),
    ),
    "slice beyond the end": ("transforms", lambda: render(transforms=[moved(3, 6)]), ("5", "6")),
    "slices that overlap": ("transforms", lambda: render(transforms=[moved(2, 5), moved(0, 3)]), ("2", "3")),
    "transforms as Inria": ("transforms", lambda: render(cameras=[inria()], transforms=[moved(0, 5)]), ("OpenCV",)),
    "a device without an engine": ("means", lambda: render(gaussians=on_meta()), ("meta",)),
}


def batched(scenes: int) -> Gaussians:
    return Gaussians(**{name: torch.stack([tensor] * scenes) for name, tensor in scene().tensors().items()})


def on_meta() -> Gaussians:
    return Gaussians(**{name: tensor.to("meta") for name, tensor in scene().tensors().items()})


@pytest.mark.parametrize("name", CALLS)
def test_spoiled_call_is_named(name: str) -> None:
    argument, call, words = CALLS[name]
    refused(call, argument, *words)


def retained(**changes: Any) -> State:
    return render(retain=True, **changes).state


D_COLOR = {"color": torch.ones(1, 12, 16, 3)}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (("positions",), ("positions", "means")),
        (("covariances",), ("covariances", "quats")),
        (("sh",), ("sh", "colors")),
        (("transforms",), ("transforms",)),
    ],
)
def test_a_gradient_that_there_cannot_be_is_named(wanted: tuple[str, ...], words: tuple[str, ...]) -> None:
    state = retained()
    refused(lambda: backward(state, D_COLOR, wanted), "wanted", *words)


def test_gradients_of_two_kinds_of_cameras_are_refused() -> None:
    state = retained(cameras=[view(), inria()])
    refused(lambda: backward(state, {"color": torch.ones(2, 12, 16, 3)}, ("cameras",)), "wanted", "kind")


@pytest.mark.parametrize(
    ("given", "argument", "words"),
    [
        ({}, "output_gradients", ("color",)),
        ({"depth": torch.ones(1, 12, 16)}, "output_gradients", ("depth", "alpha")),
        ({"inverse_depth": torch.ones(1, 12, 16)}, "output_gradients", ("inverse_depth",)),
        ({"radii": torch.ones(1, 5, 2)}, "output_gradients", ("radii",)),
        ({"color": torch.ones(12, 16, 3)}, "color", ("1, 12, 16, 3",)),
        ({"color": torch.ones(1, 12, 16, 3, dtype=torch.float64)}, "color", ("float64",)),
        ({"alpha": torch.ones(1, 12, 16, 1)}, "alpha", ()),
        ({"alpha": None}, "alpha", ("none",)),
        ({"means2d": torch.ones(1, 4, 2)}, "means2d", ("1, 5, 2",)),
        ({"transmittance": torch.ones(1, 12, 16, device="meta")}, "transmittance", ("meta",)),
    ],
)
def test_spoiled_output_gradient_is_named(given: dict[str, Any], argument: str, words: tuple[str, ...]) -> None:
    state = retained()
    refused(lambda: backward(state, given), argument, *words)


@pytest.mark.parametrize(
    ("argument", "changes"),
    [
        ("means", {"means": torch.full((5, 3), float("nan"))}),
        ("quats", {"quats": torch.full((5, 4), float("inf"))}),
        ("colors", {"colors": torch.full((5, 3), float("-inf"))}),
        ("opacities", {"opacities": torch.full((5,), 1.01)}),
        ("opacities", {"opacities": torch.full((5,), -0.01)}),
        ("scales", {"scales": torch.full((5, 3), -0.01)}),
        ("covariances", {"quats": None, "scales": None, "covariances": torch.full((5, 6), -1.0)}),
    ],
)
def test_impossible_value_is_named(argument: str, changes: dict[str, Any]) -> None:
    spoiled = scene(**changes)
    refused(lambda: check_values(spoiled), argument)


def test_possible_values_are_accepted() -> None:
    check_values(scene())
    check_values(scene(quats=torch.zeros(5, 4), scales=torch.zeros(5, 3)))
    check_values(Gaussians(**{name: tensor[:0] for name, tensor in scene().tensors().items()}))


OUT_OF_RANGE: dict[str, tuple[object, ...]] = {
    "semantics": ("Exact", "inria"),
    "sh_degree": (5, -1, 1.5),
    "antialiased": (1,),
    "deterministic": ("yes",),
    "eps2d": (-0.1, "a", math.nan),
    "near": (0.0, math.inf, math.nan),
    "far": (0.01, None, math.nan),
    "radius_clip": (-1.0,),
    "alpha_min": (0.0, 1.0),
    "alpha_max": (1.0, 1 / 255),
    "transmittance_min": (1.0, -1e-9),
    "pixel_center": (0.25,),
    "scale_modifier": (0.0, math.inf),
}


@pytest.mark.parametrize(
    ("argument", "value"), [(name, value) for name in OUT_OF_RANGE for value in OUT_OF_RANGE[name]]
)
def test_setting_out_of_range_is_named(argument: str, value: object) -> None:
    options: dict[str, Any] = {argument: value}
    refused(lambda: Settings(**options), argument)


@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("width", lambda: view(0, 12)),
        ("width", lambda: view(40000, 12)),
        ("height", lambda: view(16, -3)),
        ("model", lambda: view(model="ortho")),
        ("distortion", lambda: view(distortion=[0.1])),
        ("distortion", lambda: view(distortion=[float("nan")] * 4)),
        ("distortion", lambda: view(distortion=[0.1, 0, 0, 0], model="fisheye")),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, np.eye(2).tolist(), [0.0] * 3, 16, 12)),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, [["a"] * 3] * 3, [0.0] * 3, 16, 12)),
        ("rotation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, [[float("nan")] * 3] * 3, [0.0] * 3, 16, 12)),
        ("translation", lambda: Camera.opencv(9.0, 9.0, 8.0, 6.0, EYE, [0.0] * 2, 16, 12)),
        ("fx", lambda: Camera.opencv(0.0, 9.0, 8.0, 6.0, EYE, [0.0] * 3, 16, 12)),
        ("fy", lambda: Camera.opencv(9.0, -9.0, 8.0, 6.0, EYE, [0.0] * 3, 16, 12)),
        ("cx", lambda: Camera.opencv(9.0, 9.0, float("inf"), 6.0, EYE, [0.0] * 3, 16, 12)),
        ("cy", lambda: Camera.opencv(9.0, 9.0, 8.0, "6", EYE, [0.0] * 3, 16, 12)),
        ("view_matrix", lambda: inria(view_matrix=np.eye(3))),
        # This matrix is for column vectors.
        ("view_matrix", lambda: inria(view_matrix=FRAME + np.outer([1, 1, 1, 0], [0, 0, 0, 1]))),
        ("full_projection", lambda: inria(full_projection=np.full((4, 4), np.inf))),
        ("position", lambda: inria(position=[0.0, 0.0])),
        ("tan_fov_x", lambda: inria(tan_fov_x=0.0)),
        ("tan_fov_y", lambda: inria(tan_fov_y=float("nan"))),
    ],
)
def test_impossible_camera_is_named(argument: str, call: Callable[[], object]) -> None:
    refused(call, argument)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Transform(3, 3, FRAME),
        lambda: Transform(-1, 3, FRAME),
        lambda: Transform(0, 2, 2 * FRAME),
        lambda: Transform(0, 2, np.diag([1.0, 1.0, -1.0, 1.0])),
        lambda: Transform(0, 2, np.eye(3)),
        lambda: Transform(0, 2, FRAME + np.outer([0, 0, 0, 1], [1, 0, 0, 0])),
        lambda: Transform(0, 2, np.full((4, 4), np.nan)),
    ],
)
def test_impossible_transform_is_named(call: Callable[[], object]) -> None:
    refused(call, "transforms")
