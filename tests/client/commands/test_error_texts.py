"""Texts of errors: they name the argument, whatever was passed for it, and are at most 500 characters long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import (
    Camera,
    Client,
    Cuboid,
    Gaussians,
    InvalidArgument,
    LumigradError,
    Obstacle,
    SceneHandle,
    Spheres,
    Unavailable,
    VoxelGrid,
    World,
)
from lumigrad.client.base.arguments import one_of, whole_number
from lumigrad.client.errors import Violation, shortened
from lumigrad.kernels.errors import ArgumentError
from support.training.scenes import gaussian_lesson
from support.workers.forks import lumigrad

CAMERA = Camera.look_at((0, 0, 4), (0, 0, 0), width=32, height=24)
SCENE = gaussian_lesson(40).scene
LONG = "x" * 20_000
MANY = np.zeros((20_000, 3))
WORLD = World([Obstacle(Cuboid((1, 1, 1)))])

WRONG: dict[str, Callable[[Client], Any]] = {
    "eye": lambda _: Camera.look_at(MANY, (0, 0, 0)),
    "distortion": lambda _: Camera.opencv(1, 1, 1, 1, np.eye(3), np.zeros(3), 8, 8, distortion=MANY[:, 0]),
    "rotation": lambda _: Camera.opencv(1, 1, 1, 1, MANY, np.zeros(3), 8, 8),
    "voxels": lambda _: VoxelGrid(MANY, LONG),
    "means": lambda _: Gaussians(LONG, MANY, MANY, MANY),
    "spheres": lambda _: Spheres([LONG] * 100, MANY, MANY),
    "outputs, many": lambda client: client.render(SCENE, CAMERA, outputs=tuple("abc" * 5000)),
    "format": lambda client: client.render(SCENE, CAMERA, image_format=LONG),
    "semantics, array": lambda client: client.render(SCENE, CAMERA, semantics=MANY),
    "background": lambda client: client.render(SCENE, CAMERA, background=MANY[:, 0]),
    "camera": lambda client: client.render(SCENE, LONG),
    "scene": lambda client: client.render(LONG, CAMERA),
    "scene_id": lambda client: client.get(LONG),
    "wanted": lambda client: client.render(SCENE, CAMERA).backward(np.ones((24, 32, 3)), wanted=(LONG,)),
    "obstacles": lambda client: client.update(client.put(WORLD), poses={LONG: np.zeros(3)}),
    "address": lambda _: Client(LONG),
    "unavailable": lambda _: Client(",".join(f"localhost:{port}" for port in range(1, 60)), retry_s=0).info(),
    "token": lambda _: Client(tls=LONG),
    "setting of a trainer": lambda client: client.trainer(SCENE, [CAMERA], **{LONG: 1}),
    "rates": lambda client: client.trainer(SCENE, [CAMERA], rates={LONG: 1e-3}),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_text_is_short_whatever_was_passed(client: Client, case: str) -> None:
    with pytest.raises(LumigradError) as raised:
        WRONG[case](client)
    assert len(str(raised.value)) <= 500, str(raised.value)[:600]
    for violation in getattr(raised.value, "violations", ()):
        assert len(violation.field) + len(violation.description) <= 600


RAW: dict[str, tuple[str, Callable[[Client], Any]]] = {
    "time-out, text": ("timeout_s", lambda _: Client(timeout_s="5")),
    "time-out, none": ("timeout_s", lambda _: Client(timeout_s=None)),
    "time-out, NaN": ("timeout_s", lambda _: Client(timeout_s=float("nan"))),
    "retries, text": ("retry_s", lambda _: Client(retry_s="x")),
    "time-out of a call": ("timeout_s", lambda client: client.render(SCENE, CAMERA, timeout_s="x")),
    "time-out of a call, NaN": ("timeout_s", lambda client: client.info(timeout_s=float("nan"))),
    "time-out of a trainer": ("timeout_s", lambda client: client.trainer(SCENE, [CAMERA], timeout_s="x")),
    "retain": ("retain", lambda client: client.render(SCENE, CAMERA, retain="no")),
    "spread": ("spread", lambda client: client.render(SCENE, CAMERA, spread="no")),
    "retain of a query": ("retain", lambda client: client.query(WORLD, np.zeros((1, 4)), retain="no")),
    "spread of a query": ("spread", lambda client: client.query(WORLD, np.zeros((1, 4)), spread=[])),
    "sparse": ("sparse", lambda client: client.render(SCENE, CAMERA).backward(np.ones((24, 32, 3)), sparse="no")),
    "release": ("release", lambda client: client.render(SCENE, CAMERA).backward(np.ones((24, 32, 3)), release="no")),
    "text for a gradient": ("color", lambda client: client.render(SCENE, CAMERA).backward("abc")),
    "complex gradient": ("color", lambda client: client.render(SCENE, CAMERA).backward(1j * np.ones((24, 32, 3)))),
    "objects": ("color", lambda client: client.render(SCENE, CAMERA).backward(np.array([[object()]]))),
    "decoded": ("name", lambda client: client.render(SCENE, CAMERA).decoded("color")),
    "decoded, another": ("name", lambda client: client.render(SCENE, CAMERA, image_format="png").decoded("alpha")),
}


@pytest.mark.parametrize("case", RAW)
def test_no_error_is_that_of_another_library(client: Client, case: str) -> None:
    name, attempt = RAW[case]
    with pytest.raises(InvalidArgument, match=f"^{name}: expected") as raised:
        attempt(client)
    assert raised.value.violations[0].field == name


@pytest.mark.parametrize("wrong", ["3", None, [3], float("nan"), 2.5, -1])
def test_what_is_no_count_is_told_what_counts_are(wrong: object) -> None:
    with pytest.raises(InvalidArgument, match=r"^count: expected a whole number from 0 to 9, got [^;]+$"):
        whole_number("count", wrong, 0, 9)


@pytest.mark.parametrize(
    "value", [2**53 + 1, 2**64 - 1, np.uint64(2**64 - 1), np.array(2**60 + 1), torch.tensor(2**60 + 1)]
)
def test_large_whole_numbers_keep_their_last_digits(value: Any) -> None:
    assert whole_number("seed", value, 0, 2**64 - 1) == int(value)
    with pytest.raises(InvalidArgument, match=rf"^seed: expected a whole number from 0 to {int(value) - 1}, got "):
        whole_number("seed", value, 0, int(value) - 1)


def test_gradients_of_other_libraries_are_taken(client: Client) -> None:
    frame = client.render(SCENE, CAMERA)
    expected = frame.backward(np.ones((24, 32, 3)))
    for gradient in (np.ones((24, 32, 3), np.int64), torch.ones(24, 32, 3), torch.ones(24, 32, 3).bfloat16()):
        found = frame.backward(gradient)
        np.testing.assert_allclose(found.means, expected.means, atol=1e-6)


def test_beginning_and_end_of_a_long_text_are_kept() -> None:
    assert shortened("short") == "short" and len(shortened("x" * 501)) == 500
    error = InvalidArgument.of("name", f"expected less, got {LONG}; pass less")
    assert str(error).startswith("name: expected less, got xxx") and str(error).endswith("xxx; pass less")
    assert len(Violation(LONG, LONG).field) <= 100
    assert len(str(Unavailable(LONG))) == 500
    assert len(str(ArgumentError("name", "less", LONG))) < 300
    with pytest.raises(InvalidArgument, match="got ndarray"):
        one_of("name", MANY, ("a", "b"))
    assert isinstance(SceneHandle("", 1, "", "mesh", 0, 0), SceneHandle)


@pytest.mark.parametrize(
    "arguments",
    [
        ("render", LONG[:4000], "-o", "x.png"),
        ("render", "sample:vase", "-o", "x.png", "--size", LONG),
        ("render", "sample:vase", "-o", "x.png", "--camera", f"orbit {LONG}"),
        ("info", "--target", LONG),
        ("query", LONG[:200], "--spheres", LONG[:200]),
    ],
    ids=["file", "size", "camera", "target", "query"],
)
def test_a_command_says_what_is_wrong_in_a_few_lines(arguments: tuple[str, ...]) -> None:
    done = lumigrad(*arguments)
    assert done.returncode in (1, 2)
    assert all(len(line) <= 520 for line in done.stderr.splitlines()), done.stderr[:1000]
