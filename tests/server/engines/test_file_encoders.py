"""Image files are encoded without the GIL, so that other threads of a worker go on."""

from __future__ import annotations

import hashlib
import io
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from PIL import Image

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.server.engines.images import jpeg_of, png_of
from lumigrad.server.sensorsim.pictures import PictureStyle

_STEP_SECONDS = 2e-5
# Longer than any test: the GIL changes hands only where it is released.
_NEVER_SECONDS = 1e4


def held(call: Callable[[], object], *, calls: int = 1000, enough: float = 0.0) -> float:
    """Returns the largest part of a call's processor time between two steps of another thread; 1: it holds the GIL.

    The least of several calls counts, up to the first that has `enough`, as the other thread may wait for a core.
    """
    own = time.pthread_getcpuclockid(threading.get_ident())
    steps: list[float] = []
    done = threading.Event()

    def step() -> None:
        while not done.is_set():
            steps.append(time.clock_gettime(own))
            time.sleep(_STEP_SECONDS)

    def measured() -> float:
        start = time.clock_gettime(own)
        call()
        end = time.clock_gettime(own)
        moments = [start, *(moment for moment in steps if start < moment < end), end]
        steps.clear()
        return max(after - before for before, after in pairwise(moments)) / (end - start)

    call()
    interval, thread = sys.getswitchinterval(), threading.Thread(target=step)
    sys.setswitchinterval(_NEVER_SECONDS)
    thread.start()
    try:
        least = 1.0
        for _ in range(calls):
            least = min(least, measured())
            if least <= enough:
                break
            time.sleep(_STEP_SECONDS)
        return least
    finally:
        done.set()
        thread.join()
        sys.setswitchinterval(interval)


# The part of a call's processor time that may pass without a step of another Python thread: 0.01 on a quiet machine; on
# a busy one the other thread also waits for a core.
_MOST = 0.25


def picture(channels: int, height: int = 720, width: int = 1280) -> np.ndarray:
    """Smooth waves with some noise, as renders have."""
    y, x = np.mgrid[:height, :width] / 90.0
    waves = np.stack([np.sin(x * (1 + c)) * np.cos(y + c) for c in range(channels)], axis=-1)
    noise = np.random.default_rng(0).normal(0.0, 3.0, waves.shape)
    return np.clip(127 + 90 * waves + noise, 0, 255).astype(np.uint8)


def test_the_meter_tells_who_holds_the_gil() -> None:
    zeros = bytes(8 << 20)
    assert held(lambda: zeros.count(b"\1"), calls=5) > 0.9
    assert held(lambda: hashlib.sha256(zeros), enough=_MOST) <= _MOST


@pytest.mark.parametrize(
    ("encode", "channels"),
    [
        pytest.param(lambda levels: jpeg_of(levels, 90), 3, id="jpeg, 4:4:4"),
        pytest.param(lambda levels: jpeg_of(levels, 75), 3, id="jpeg, 4:2:0"),
        pytest.param(png_of, 1, id="png, grey"),
        pytest.param(png_of, 3, id="png, colours"),
        pytest.param(png_of, 4, id="png, colours and alpha"),
    ],
)
def test_files_are_encoded_without_the_gil(encode: Callable[[np.ndarray], bytes], channels: int) -> None:
    levels = picture(channels)
    assert held(lambda: encode(levels), enough=_MOST) <= _MOST


@pytest.mark.parametrize("image_format", [sensorsim_pb2.PNG, sensorsim_pb2.JPEG])
def test_pictures_of_simulators_are_encoded_without_the_gil(image_format: int) -> None:
    levels, mask = picture(3), Image.fromarray(picture(4), "RGBA")
    style, catalog = PictureStyle(image_format, 95, ("front", "rig")), mock.Mock(mask=lambda *_: mask)
    assert held(lambda: style.encode(levels, catalog, None, None), enough=_MOST) <= _MOST


@pytest.mark.parametrize(("quality", "blocks"), [(100, (1, 1)), (90, (1, 1)), (89, (2, 2)), (1, (2, 2))])
def test_colours_of_jpeg_files_have_the_full_resolution_from_quality_90_on(
    quality: int, blocks: tuple[int, int]
) -> None:
    levels = picture(3, 90, 160)
    with Image.open(io.BytesIO(jpeg_of(levels, quality))) as image:
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (160, 90))
        assert [layer[1:3] for layer in image.layer] == [blocks, (1, 1), (1, 1)]  # type: ignore[attr-defined]
        tables = image.quantization  # type: ignore[attr-defined]
    # The tables of the quality, as Pillow writes them.
    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG", quality=quality)
    assert tables == Image.open(file).quantization  # type: ignore[attr-defined]


def test_jpeg_files_are_as_good_and_as_small_as_those_of_pillow() -> None:
    levels = picture(3)

    def noise_and_size(data: bytes) -> tuple[float, int]:
        shown = np.asarray(Image.open(io.BytesIO(data)), np.float64)
        return float(10 * np.log10(255.0**2 / np.mean((shown - levels) ** 2))), len(data)

    file = io.BytesIO()
    Image.fromarray(levels).save(file, "JPEG", quality=90, subsampling=0)
    (quality, size), (other, other_size) = noise_and_size(jpeg_of(levels, 90)), noise_and_size(file.getvalue())
    assert quality > other - 0.5
    assert size < 1.02 * other_size


def test_images_in_pieces_are_encoded_too() -> None:
    levels = picture(3, 90, 160)
    assert jpeg_of(levels[:, ::-1], 90) == jpeg_of(levels[:, ::-1].copy(), 90)
