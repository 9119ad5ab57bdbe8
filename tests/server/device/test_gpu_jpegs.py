"""JPEG files that a GPU encodes: the pixels and settings that nvJPEG gets, and what happens if it fails."""

from __future__ import annotations

import gc
import importlib.util
import io
import logging
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from ctypes.util import find_library
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from lumigrad.kernels import _native
from lumigrad.server.core.call import Call
from lumigrad.server.core.errors import CancelledError, DeadlineError
from lumigrad.server.device.gpu_jpegs import GpuJpegs, library_path
from lumigrad.server.engines.images import jpeg_of
from support.backends import emulation
from support.backends.nvjpeg import Control, StandInFile, build
from support.models.account_machine import Caller
from support.workers.slow_render import wait_until

NATIVE = Path(__file__).parents[3] / "kernels" / "native"
# The images that are encoded at the same time, as gpu_jpegs.py has it.
MOST = 4
WARNING = "nvJPEG has failed; the CPU encodes JPEG files instead"
# Functions that are called once, and for each image.
AT_LOAD = ("nvjpegGetProperty", "nvjpegCreateSimple")
FOR_EACH = (
    "nvjpegEncoderStateCreate",
    "nvjpegEncoderParamsCreate",
    "nvjpegEncoderParamsSetQuality",
    "nvjpegEncoderParamsSetSamplingFactors",
    "nvjpegEncodeImage",
    "nvjpegEncodeRetrieveBitstream",
)


def picture(height: int = 45, width: int = 61, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def is_from_the_cpu(file: bytes, levels: np.ndarray, quality: int = 90) -> bool:
    return file == jpeg_of(levels, quality)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvjpeg"))


@pytest.fixture
def control(path: Path) -> Iterator[Control]:
    """Controls the library; at the end of a test nothing is left of what was created."""
    made = Control(path)
    yield made
    gc.collect()
    assert made.alive == (0, 0, 0)


@pytest.fixture
def jpegs(path: Path, control: Control) -> Iterator[GpuJpegs]:
    made = of(path)
    yield made
    # Pytest keeps the object itself until later.
    vars(made).clear()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    logging.getLogger("lumigrad").propagate = True
    caplog.set_level(logging.WARNING, "lumigrad")
    return lambda: [f"{record.message}: {record.fields['reason']}" for record in caplog.records]  # type: ignore[attr-defined]


def of(library: Path) -> GpuJpegs:
    native: Any = emulation.load("_emulation")
    return GpuJpegs(lambda: native.JpegEncoder(str(library), 0))


@pytest.mark.parametrize("size", [(45, 61), (1, 1), (2, 8), (270, 480)])
@pytest.mark.parametrize(("quality", "are_halved"), [(100, False), (90, False), (89, True), (1, True)])
def test_pixels_and_settings_arrive(jpegs: GpuJpegs, size: tuple[int, int], quality: int, are_halved: bool) -> None:
    levels = picture(*size)
    told = StandInFile.of(jpeg_of(levels, quality, jpegs))
    assert (told.quality, told.are_colors_halved) == (quality, are_halved)
    np.testing.assert_array_equal(told.levels, levels)


def test_images_in_pieces_arrive_too(jpegs: GpuJpegs) -> None:
    levels = picture()[:, ::-1]
    np.testing.assert_array_equal(StandInFile.of(jpeg_of(levels, 90, jpegs)).levels, levels)


def test_a_state_is_used_again_for_larger_and_smaller_images(jpegs: GpuJpegs, control: Control) -> None:
    before = control.states_created
    for height in (10, 300, 20, 301):
        levels = picture(height)
        np.testing.assert_array_equal(StandInFile.of(jpeg_of(levels, 90, jpegs)).levels, levels)
    assert control.states_created == before + 1


def test_pixels_are_on_the_device_before_they_are_encoded(jpegs: GpuJpegs) -> None:
    native: Any = emulation.load("_emulation")
    native.set_deferred(True)
    try:
        for seed in range(3):
            levels = picture(seed=seed)
            np.testing.assert_array_equal(StandInFile.of(jpeg_of(levels, 90, jpegs)).levels, levels)
    finally:
        native.set_deferred(False)


@pytest.mark.parametrize("function", FOR_EACH)
def test_a_failure_ends_no_other_image(
    jpegs: GpuJpegs, control: Control, warnings: Callable[[], list[str]], function: str
) -> None:
    levels = picture()
    for _ in range(2):
        control.fail(function)
        if "Create" in function:
            # States are created only for images that find no idle one.
            control.fail("nvjpegEncodeImage")
            assert is_from_the_cpu(jpeg_of(levels, 90, jpegs), levels)
            control.fail(function)
        assert is_from_the_cpu(jpeg_of(levels, 90, jpegs), levels)
        np.testing.assert_array_equal(StandInFile.of(jpeg_of(levels, 90, jpegs)).levels, levels)
    (warning,) = warnings()
    expected = "nvjpegEncodeImage" if "Create" in function else function
    assert warning == f"{WARNING}: {expected} returned 6"


def test_a_library_that_always_fails_is_not_asked_for_ever(jpegs: GpuJpegs, control: Control) -> None:
    levels = picture()
    for count in (99, 100):
        control.fail("nvjpegEncodeImage", count)
        assert all(is_from_the_cpu(jpeg_of(levels, 90, jpegs), levels) for _ in range(count))
        # A success in between begins the count anew.
        assert is_from_the_cpu(jpeg_of(levels, 90, jpegs), levels) == (count == 100)
    gc.collect()
    assert control.alive == (0, 0, 0)


@pytest.mark.parametrize("function", AT_LOAD)
def test_a_library_that_cannot_begin_is_not_asked_again(
    jpegs: GpuJpegs, control: Control, warnings: Callable[[], list[str]], function: str
) -> None:
    levels, before = picture(), control.encoded
    control.fail(function)
    assert all(is_from_the_cpu(jpeg_of(levels, 90, jpegs), levels) for _ in range(3))
    assert warnings() == [f"{WARNING}: {function} returned 6"]
    assert control.encoded == before


def test_a_device_without_memory_leaves_the_image_to_the_cpu(
    jpegs: GpuJpegs, warnings: Callable[[], list[str]]
) -> None:
    native: Any = emulation.load("_emulation")
    levels = picture(700, 700)
    # The second attempt comes after cached memory was freed.
    native.fail_allocations(2)
    try:
        assert is_from_the_cpu(jpeg_of(levels, 90, jpegs), levels)
    finally:
        native.fail_allocations(0)
    np.testing.assert_array_equal(StandInFile.of(jpeg_of(levels, 90, jpegs)).levels, levels)
    assert len(warnings()) == 1 and "out of memory" in warnings()[0]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-DMAJOR=14"], "its version is 14, not 12 or 13"),
        (["-DnvjpegEncodeImage=nvjpegOther"], "there is no nvjpegEncodeImage"),
        (None, "file too short"),
    ],
)
def test_unknown_libraries_are_not_used(
    tmp_path: Path, warnings: Callable[[], list[str]], options: list[str] | None, text: str
) -> None:
    library, levels = tmp_path / "libnvjpeg.so.13", picture()
    if options is None:
        library.write_bytes(b"?")
    else:
        build(tmp_path, library.name, *options)
    jpegs = of(library)
    assert all(is_from_the_cpu(jpeg_of(levels, 90, jpegs), levels) for _ in range(2))
    (warning,) = warnings()
    assert warning.startswith(WARNING) and text in warning


def test_few_images_at_a_time_and_each_its_own(jpegs: GpuJpegs, control: Control) -> None:
    before = control.states_created
    control.hold(True)
    with ThreadPoolExecutor(3 * MOST) as threads:
        pictures = [picture(20 + seed, seed=seed) for seed in range(12 * MOST)]
        files = [threads.submit(jpeg_of, levels, 75, jpegs) for levels in pictures]
        # Other threads run, although all encoders wait: they do not hold the GIL.
        wait_until(lambda: control.alive[Control.STATE] == MOST)
        control.hold(False)
        for levels, file in zip(pictures, files, strict=True):
            np.testing.assert_array_equal(StandInFile.of(file.result()).levels, levels)
    assert control.states_created == before + MOST
    assert control.most_together <= MOST


def late_call() -> Call:
    return Call("Test.Call", Caller(), deadline=time.monotonic() + 0.2)


def cancelled_call() -> Call:
    call = Call("Test.Call", Caller())
    call.cancel("the caller has left")
    return call


@pytest.mark.parametrize(("made", "error"), [(late_call, DeadlineError), (cancelled_call, CancelledError)])
def test_images_of_calls_that_end_do_not_wait_for_others(
    jpegs: GpuJpegs, control: Control, made: Callable[[], Call], error: type[Exception]
) -> None:
    levels = picture()
    control.hold(True)
    with ThreadPoolExecutor(MOST) as threads:
        files = [threads.submit(jpeg_of, levels, 75, jpegs, Call("Test.Call", Caller())) for _ in range(MOST)]
        try:
            wait_until(lambda: control.alive[Control.STATE] == MOST)
            for _ in range(2):
                with pytest.raises(error):
                    jpeg_of(levels, 75, jpegs, made())
            assert not any(file.done() for file in files)
        finally:
            control.hold(False)
        for file in files:
            np.testing.assert_array_equal(StandInFile.of(file.result()).levels, levels)
        # No place was lost.
        again = [threads.submit(jpeg_of, levels, 75, jpegs, Call("Test.Call", Caller())) for _ in range(3 * MOST)]
        assert all(StandInFile.of(file.result()).quality == 75 for file in again)


def test_failures_beside_other_images(jpegs: GpuJpegs, control: Control) -> None:
    control.fail("nvjpegEncodeImage", 25)
    pictures = [picture(20 + seed, seed=seed) for seed in range(100)]
    with ThreadPoolExecutor(2 * MOST) as threads:
        files = list(threads.map(lambda levels: jpeg_of(levels, 75, jpegs), pictures))
    own = [is_from_the_cpu(file, levels, 75) for levels, file in zip(pictures, files, strict=True)]
    assert sum(own) == 25
    for levels, file, is_own in zip(pictures, files, own, strict=True):
        if not is_own:
            np.testing.assert_array_equal(StandInFile.of(file).levels, levels)
    assert control.alive[Control.STATE] <= MOST


@pytest.mark.parametrize(("version", "place"), [("13.0", "cu13"), ("12.8", "nvjpeg")])
def test_the_library_is_that_of_the_version_of_cuda(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, place: str
) -> None:
    names = {"cu13": "libnvjpeg.so.13", "nvjpeg": "libnvjpeg.so.12"}
    for package, name in names.items():
        folder = tmp_path / "nvidia" / package / "lib"
        folder.mkdir(parents=True)
        (folder / name).touch()
    # A package that is installed here would be found in other folders.
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    assert library_path(version) == tmp_path / "nvidia" / place / "lib" / names[place]
    (tmp_path / "nvidia" / place / "lib" / names[place]).unlink()
    assert library_path(version) is None
    assert library_path(None) is None


def installed(pattern: str) -> list[Path]:
    """Files of the packages of nvJPEG in this environment; skips the test if there are none."""
    found = importlib.util.find_spec("nvidia")
    folders = [] if found is None else list(found.submodule_search_locations or ())
    files = [path for folder in folders for path in sorted(Path(folder).glob(pattern))]
    if not files:
        pytest.skip("no package of nvJPEG is installed (the extras nvjpeg and nvjpeg-cu12)")
    return files


def test_installed_libraries_are_loaded_and_need_a_gpu(warnings: Callable[[], list[str]]) -> None:
    if find_library("cuda") is not None:
        pytest.skip("needs a machine without a driver: the library would read the emulated device's memory on the GPU")
    levels = picture()
    for library in installed("*/lib/libnvjpeg.so.*"):
        # All functions were found, and the version is known.
        assert is_from_the_cpu(jpeg_of(levels, 90, of(library)), levels)
        assert warnings()[-1] == f"{WARNING}: nvjpegCreateSimple returned 6"


# Compares the declarations of nvjpeg.h with those of the library's header, parameter by parameter.
COMPARISON = """
#include <nvjpeg.h>

#include <type_traits>

#include "serving/cuda/nvjpeg.h"

namespace ours = lumigrad::serving::nvjpeg;

template <class A, class B>
constexpr bool is_alike = sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B> &&
                          (std::is_pointer_v<A> || std::is_integral_v<A> || std::is_enum_v<A>);
template <class A, class B>
constexpr bool is_same_call = false;
template <class A, class... As, class B, class... Bs>
  requires(sizeof...(As) == sizeof...(Bs))
constexpr bool is_same_call<A (*)(As...), B (*)(Bs...)> = is_alike<A, B> && (is_alike<As, Bs> && ...);

#define SAME_CALL(theirs, member) static_assert(is_same_call<decltype(&theirs), decltype(ours::Functions::member)>)
CALLS

static_assert(NVJPEG_STATUS_SUCCESS == ours::kSuccess);
static_assert(MAJOR_VERSION == ours::kMajorVersion);
static_assert(NVJPEG_CSS_444 == ours::kFull && NVJPEG_CSS_420 == ours::kHalved);
static_assert(NVJPEG_INPUT_RGBI == ours::kInterleavedRgb);
static_assert(sizeof(nvjpegImage_t) == sizeof(ours::Image) && alignof(nvjpegImage_t) == alignof(ours::Image));
static_assert(offsetof(nvjpegImage_t, channel) == offsetof(ours::Image, channel));
static_assert(offsetof(nvjpegImage_t, pitch) == offsetof(ours::Image, pitch));
"""
STREAM = "#pragma once\n#include <stddef.h>\ntypedef struct CUstream_st* cudaStream_t;\n"
PROPERTIES = "#pragma once\nenum libraryPropertyType { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL };\n"


def compile_with(header: Path, source: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Compile a source with the header of nvJPEG; the headers of CUDA are replaced by what nvJPEG uses of them."""
    for name in ("cuda_runtime.h", "cuda_runtime_api.h"):
        (folder / name).write_text(STREAM)
    (folder / "library_types.h").write_text(PROPERTIES)
    (folder / "check.cpp").write_text(source)
    command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{folder}", f"-I{NATIVE}", f"-I{header.parent}"]
    return subprocess.run([*command, str(folder / "check.cpp")], capture_output=True, text=True, check=False)


def test_declarations_agree_with_the_header(tmp_path: Path) -> None:
    if not NATIVE.is_dir():
        pytest.skip("the sources of the kernels are not here")
    calls = re.findall(r'use\("(\w+)", functions\.(\w+)\)', (NATIVE / "serving/cuda/nvjpeg.h").read_text())
    assert len(calls) == 11
    for header in installed("*/include/nvjpeg.h"):
        source = COMPARISON.replace("CALLS", "\n".join(f"SAME_CALL({name}, {member});" for name, member in calls))
        done = compile_with(header, source, tmp_path)
        assert done.returncode == 0, done.stderr
        # The comparison finds what differs.
        for right, wrong in (("SAME_CALL(nvjpegDestroy, destroy)", "SAME_CALL(nvjpegDestroy, get_property)"),
                             ("NVJPEG_CSS_420 ==", "NVJPEG_CSS_422 ==")):  # fmt: skip
            assert compile_with(header, source.replace(right, wrong), tmp_path).returncode != 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("quality", [50, 75, 89, 90, 95])
def test_files_of_a_gpu_are_as_good_as_those_of_the_cpu(quality: int, warnings: Callable[[], list[str]]) -> None:
    library = library_path(torch.version.cuda)
    if library is None:
        pytest.skip("nvJPEG is not installed (the extras nvjpeg and nvjpeg-cu12)")
    native: Any = _native
    jpegs = GpuJpegs(lambda: native.JpegEncoder(str(library), 0))
    y, x = np.mgrid[:721, :1281] / 90.0
    waves = np.stack([np.sin(x * (1 + c)) * np.cos(y + c) for c in range(3)], axis=-1)
    noise = np.random.default_rng(0).normal(0.0, 3.0, waves.shape)
    levels = np.clip(127 + 90 * waves + noise, 0, 255).astype(np.uint8)

    def shown(file: bytes) -> tuple[float, list[tuple[int, ...]]]:
        with Image.open(io.BytesIO(file)) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (1281, 721))
            error = np.asarray(image, np.float64) - levels
            sampling = [layer[1:3] for layer in image.layer]  # type: ignore[attr-defined]
        return float(10 * np.log10(255.0**2 / np.mean(error**2))), sampling

    with ThreadPoolExecutor(8) as threads:
        files = list(
            threads.map(lambda _: jpegs.encode(levels, quality, None, are_colors_halved=quality < 90), range(32))
        )
    noise_of_cpu, sampling_of_cpu = shown(jpeg_of(levels, quality))
    for file in files:
        assert file is not None, warnings()
        noise_of_gpu, sampling = shown(file)
        assert abs(noise_of_gpu - noise_of_cpu) < 1.0
        assert sampling == sampling_of_cpu
