"""Frames in every image format: what comes back, what can be done with it, and what is refused."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lumigrad.client import Camera, Client, InvalidArgument, Spheres
from support.workers.forks import lumigrad
from support.workers.worker import WorkerProcess

WIDTH, HEIGHT = 40, 30


def cloud(channels: int = 3) -> Spheres:
    rng = np.random.default_rng(0)
    return Spheres(rng.uniform(-1, 1, (60, 3)), rng.uniform(-0.2, 1.2, (60, channels)), np.full(60, 0.2))


def orbit(count: int) -> list[Camera]:
    return [Camera.orbit((0, 0, 0), 4.0, 40.0 * i, 20.0, width=WIDTH, height=HEIGHT) for i in range(count)]


def levels_of(values: Any) -> Any:
    return np.rint(np.clip(values, 0, 1) * np.float32(255)).astype(np.uint8)


@pytest.mark.parametrize("short", ["float16", "bfloat16"])
def test_short_floats_come_back_as_float32(client: Client, short: Any) -> None:
    outputs = ("color", "alpha", "depth")
    exact = client.render(cloud(), orbit(2), outputs=outputs)
    frame = client.render(cloud(), orbit(2), outputs=outputs, image_format=short)
    for name in outputs:
        assert frame[name].dtype == np.float32
        np.testing.assert_allclose(frame[name], exact[name], rtol=2**-8)
    assert (frame.color != exact.color).any()


def test_levels_stay_levels(client: Client) -> None:
    exact = client.render(cloud(), orbit(1)[0])
    frame = client.render(cloud(), orbit(1)[0], image_format="uint8")
    assert frame.color.dtype == np.uint8
    assert (frame.color == levels_of(exact.color)).all()
    assert not frame.encoded


def test_files_are_bytes_and_can_be_decoded(client: Client) -> None:
    outputs = ("color", "alpha", "depth")
    formats: dict[str, Any] = {"color": "png", "alpha": "png"}
    exact = client.render(cloud(), orbit(3), outputs=outputs, max_depth=8.0)
    several = client.render(cloud(), orbit(3), outputs=outputs, max_depth=8.0, image_format=formats)
    single = client.render(cloud(), orbit(1)[0], outputs=outputs, max_depth=8.0, image_format=formats)
    assert set(several) == {"depth"}
    assert (several.depth == exact.depth).all()
    for name in formats:
        assert (several.decoded(name) == levels_of(exact[name])).all()
        assert (single.decoded(name) == levels_of(exact[name][0])).all()
        assert len(several.encoded[name]) == 3
        assert several.encoded[name][0] == single.encoded[name]
    with pytest.raises(KeyError, match=r'"color" came in files: frame\.encoded\["color"\]'):
        single["color"]
    with pytest.raises(AttributeError, match=r'decoded\("color"\) gives their pixels'):
        _ = single.color


def test_jpeg_is_as_good_as_it_is_asked_to_be(client: Client) -> None:
    exact = client.render(cloud(), orbit(1)[0]).color
    options = [{"image_format": "jpeg", "jpeg_quality": quality} for quality in (20, None, 98)]
    files = [client.render(cloud(), orbit(1)[0], **each) for each in options]
    errors = [np.abs(frame.decoded("color") / 255 - np.clip(exact, 0, 1)).mean() for frame in files]
    assert errors == sorted(errors, reverse=True)
    sizes = [len(frame.encoded["color"]) for frame in files]
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("image_format", ["uint8", "jpeg", "png", "bfloat16"])
@pytest.mark.parametrize("retain", [True, False])
def test_backward_of_any_format_is_that_of_floats(client: Client, image_format: Any, retain: bool) -> None:
    upstream = np.random.default_rng(1).normal(size=(2, HEIGHT, WIDTH, 3)).astype(np.float32)
    expected = client.render(cloud(), orbit(2), retain=True).backward(upstream)
    frame = client.render(cloud(), orbit(2), image_format=image_format, retain=retain)
    actual = frame.backward(upstream)
    for name, gradient in expected.items():
        assert (actual[name] == gradient).all()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"image_format": "gif"},
            "image_format: expected one of float32, float16, bfloat16, uint8, jpeg, png, got 'gif'",
        ),
        ({"image_format": {"alpha": "png"}}, "image_format: expected names of the outputs, color, got 'alpha'"),
        ({"jpeg_quality": 80}, 'jpeg_quality: belongs to image_format="jpeg"'),
        ({"image_format": "jpeg", "jpeg_quality": 0}, "jpeg_quality: expected a whole number from 1 to 100, got 0"),
        ({"image_format": "float16", "outputs": ("info",)}, "expected FLOAT16 only for color, alpha"),
    ],
)
def test_what_makes_no_sense_is_refused(client: Client, arguments: Any, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        client.render(cloud(), orbit(1)[0], **arguments)
    assert text in str(caught.value)


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    cloud().save(tmp_path / "cloud.ply")
    return tmp_path / "cloud.ply"


@pytest.fixture
def run(worker_process: WorkerProcess, scene: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    options = ("--size", "64x48", "--target", worker_process.target)

    def command(*arguments: str) -> subprocess.CompletedProcess[str]:
        return lumigrad("render", str(scene), *arguments, *options, folder=scene.parent)

    return command


def test_the_command_writes_the_same_png_as_from_floats(run: Any, scene: Path) -> None:
    assert run("-o", "out.png").returncode == 0
    assert run("-o", "out.npy").returncode == 0
    written = np.asarray(Image.open(scene.with_name("out.png")))
    assert (written == levels_of(np.load(scene.with_name("out.npy")))).all()


@pytest.mark.parametrize("name", ["color", "alpha", "depth"])
def test_the_command_writes_jpeg_files(run: Any, scene: Path, name: str) -> None:
    done = run("--show", name, "-o", "out.jpg")
    assert done.returncode == 0, done.stderr
    assert run("--show", name, "-o", "out.png").returncode == 0
    picture, exact = (Image.open(scene.with_name(f"out{suffix}")) for suffix in (".jpg", ".png"))
    assert picture.format == "JPEG"
    assert np.abs(np.asarray(picture, np.float32) - np.asarray(exact, np.float32)).mean() < 5
