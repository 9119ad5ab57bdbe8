"""Images travel in the format that was asked for, and gradients do not depend on it."""

from __future__ import annotations

import io
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from lumigrad.protos import dtypes
from lumigrad.v1 import image_pb2, render_pb2
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec
from support.calls.raw_calls import (
    Array,
    Arrays,
    RawClient,
    Reply,
    color_gradient,
    failure,
    opencv_camera,
    spec_of,
    sphere_cloud,
    violation,
)

FLOAT16, BFLOAT16 = image_pb2.IMAGE_FORMAT_FLOAT16, image_pb2.IMAGE_FORMAT_BFLOAT16
UINT8, JPEG, PNG = image_pb2.IMAGE_FORMAT_UINT8, image_pb2.IMAGE_FORMAT_JPEG, image_pb2.IMAGE_FORMAT_PNG
FLOATS = {
    "spheres": ("color", "alpha", "depth", "weights"),
    "gaussians": ("color", "alpha", "transmittance", "depth", "expected_depth", "inverse_depth"),
}
LEVELS = ("color", "alpha", "transmittance")


def bright_cloud(kind: str, channels: int = 3) -> dict[str, Array]:
    """Returns a cloud with colours below 0 and above 1."""
    rng = np.random.default_rng(7)
    cloud = sphere_cloud(channels=channels) if kind == "spheres" else gaussian_cloud(coefficients=0, channels=channels)
    return {**cloud, "colors": rng.uniform(-0.5, 1.5, cloud["colors"].shape).astype(np.float32)}


def spec_for(kind: str, outputs: tuple[str, ...], views: int = 2) -> render_pb2.RenderSpec:
    if kind == "spheres":
        cameras = [opencv_camera(x=0.2 * index) for index in range(views)]
        return spec_of(*cameras, outputs=outputs, background=())
    return gaussian_spec(*(camera_of(x=0.2 * index) for index in range(views)), outputs=outputs)


def formats_of(formats: Mapping[str, int], quality: int = 0) -> list[image_pb2.OutputFormat]:
    return [image_pb2.OutputFormat(name=name, format=kind, quality=quality) for name, kind in formats.items()]


def levels_of(values: Array) -> Array:
    return np.rint(np.clip(values, 0, 1) * np.float32(255)).astype(np.uint8)


def files_of(reply: Reply, name: str) -> list[bytes]:
    entry = next(entry for entry in reply.header.outputs if entry.name == name)
    content = reply.arrays[name].tobytes()
    assert sum(entry.encoded.lengths) == len(content)
    ends = np.cumsum(entry.encoded.lengths)
    return [content[end - length : end] for end, length in zip(ends, entry.encoded.lengths, strict=True)]


def pixels(file: bytes, kind: str) -> Array:
    image = Image.open(io.BytesIO(file))
    assert image.format == kind
    return np.asarray(image)


@pytest.fixture(params=["spheres", "gaussians"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
def test_floats_of_two_bytes_are_rounded_to_the_nearest(client: RawClient, kind: str, half: int) -> None:
    spec, cloud = spec_for(kind, FLOATS[kind]), bright_cloud(kind)
    exact = client.render(spec, cloud=cloud)
    short = client.render(spec, cloud=cloud, formats=formats_of(dict.fromkeys(FLOATS[kind], half)))
    for name, values in exact.arrays.items():
        bits = dtypes.float32_to_bfloat16(values)
        expected = values.astype(np.float16) if half == FLOAT16 else dtypes.bfloat16_to_float32(bits)
        assert (short.arrays[name] == expected).all(), name
    assert short.header.payload_bytes < 0.51 * exact.header.payload_bytes


def test_levels_are_rounded_and_clamped(client: RawClient, kind: str) -> None:
    names = tuple(name for name in FLOATS[kind] if name in LEVELS)
    spec, cloud = spec_for(kind, names), bright_cloud(kind)
    exact = client.render(spec, cloud=cloud).arrays
    assert exact["color"].min() < 0 and exact["color"].max() > 1
    reply = client.render(spec, cloud=cloud, formats=formats_of(dict.fromkeys(names, UINT8)))
    for name in names:
        assert reply.arrays[name].dtype == np.uint8
        assert (reply.arrays[name] == levels_of(exact[name])).all()


@pytest.mark.parametrize("channels", [1, 3, 4])
def test_png_files_hold_the_levels(client: RawClient, kind: str, channels: int) -> None:
    spec, cloud = spec_for(kind, ("color", "alpha")), bright_cloud(kind, channels)
    exact = client.render(spec, cloud=cloud).arrays
    reply = client.render(spec, cloud=cloud, formats=formats_of({"color": PNG, "alpha": PNG}))
    for name in ("color", "alpha"):
        files = files_of(reply, name)
        assert len(files) == 2
        for view, file in enumerate(files):
            levels = levels_of(exact[name][view])
            assert (pixels(file, "PNG").reshape(levels.shape) == levels).all()
    stages = {stage.name for stage in reply.timings.stages}
    assert {"download", "compress"} <= stages


def test_jpeg_files_look_like_the_levels(client: RawClient, kind: str) -> None:
    spec, cloud = spec_for(kind, ("color", "alpha")), bright_cloud(kind)
    exact = client.render(spec, cloud=cloud).arrays
    sizes, errors = [], []
    # A quality of 0 stands for 90.
    for quality in (30, 0, 100):
        reply = client.render(spec, cloud=cloud, formats=formats_of({"color": JPEG}, quality))
        files = files_of(reply, "color")
        shown = np.stack([pixels(file, "JPEG") for file in files])
        errors.append(np.abs(shown / 255 - np.clip(exact["color"], 0, 1)).mean())
        assert reply.arrays["alpha"].tobytes() == exact["alpha"].tobytes()
        sizes.append(sum(map(len, files)))
    assert sizes == sorted(sizes)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01


@pytest.mark.parametrize("image_format", [FLOAT16, UINT8])
def test_ids_are_always_whole_numbers(client: RawClient, image_format: int) -> None:
    spec, cloud = spec_for("gaussians", ("ids",)), bright_cloud("gaussians")
    error = failure(lambda: client.render(spec, cloud=cloud, formats=formats_of({"ids": image_format})))
    field, text = violation(error)
    assert field == "formats[0].format" and text.endswith("got ids")


def test_each_output_travels_as_it_was_asked_to(client: RawClient, kind: str) -> None:
    count = "hits" if kind == "spheres" else "contributors"
    spec, cloud = spec_for(kind, ("color", "depth", count)), bright_cloud(kind)
    formats = formats_of({"depth": FLOAT16, count: image_pb2.IMAGE_FORMAT_FLOAT32})
    reply = client.render(spec, cloud=cloud, formats=formats)
    sent = {entry.name: entry.tensor.dtype for entry in reply.header.outputs}
    assert sent == {"color": dtypes.FLOAT32, "depth": dtypes.FLOAT16, count: dtypes.INT32}


def test_gradients_are_those_of_floats(client: RawClient, kind: str) -> None:
    spec, cloud = spec_for(kind, ("color", "depth")), bright_cloud(kind)
    gradients: Arrays = {"color": color_gradient(2, 48, 64, 3), "depth": color_gradient(2, 48, 64)}
    expected = client.backward(gradients, context_id=client.render(spec, cloud=cloud, retain=True).header.context_id)
    formats = formats_of({"color": UINT8, "depth": BFLOAT16})
    retained = client.render(spec, cloud=cloud, retain=True, formats=formats)
    actual = client.backward(gradients, context_id=retained.header.context_id)
    assert {name: array.tobytes() for name, array in actual.arrays.items()} == {
        name: array.tobytes() for name, array in expected.arrays.items()
    }


@pytest.mark.parametrize(
    ("entries", "channels", "field", "text"),
    [
        ([("depth", FLOAT16, 0)], 3, "[0].name", "expected one of the outputs, color, hits, info, each once, got"),
        ([("color", PNG, 0), ("color", PNG, 0)], 3, "[1].name", "each once, got color"),
        ([("color", 99, 0)], 3, "[0].format", "expected a known format, got 99"),
        ([("info", FLOAT16, 0)], 3, "[0].format", "expected FLOAT16 only for color, alpha, transmittance, depth"),
        ([("hits", UINT8, 0)], 3, "[0].format", "expected UINT8 only for color, alpha or transmittance, got hits"),
        ([("info", PNG, 0)], 3, "[0].format", "expected PNG only for color, alpha or transmittance, got info"),
        ([("hits", JPEG, 0)], 3, "[0].format", "expected JPEG only for color, got hits"),
        ([("color", JPEG, 0)], 1, "[0].format", "expected JPEG for a scene of 3 channels, got 1 channels"),
        ([("color", PNG, 0)], 7, "[0].format", "expected PNG for a scene of 1, 3 or 4 channels, got 7 channels"),
        ([("color", JPEG, 101)], 3, "[0].quality", "expected 0 to 100, got 101"),
        ([("color", PNG, 90)], 3, "[0].quality", "expected 0 for formats other than JPEG, got 90"),
    ],
)
def test_formats_that_make_no_sense_are_refused(
    client: RawClient, entries: list[tuple[str, int, int]], channels: int, field: str, text: str
) -> None:
    formats = [image_pb2.OutputFormat(name=name, format=kind, quality=quality) for name, kind, quality in entries]
    spec = spec_for("spheres", ("color", "hits", "info"))
    error = failure(lambda: client.render(spec, cloud=sphere_cloud(channels=channels), formats=formats))
    assert violation(error)[0] == f"formats{field}"
    assert text in error.details()


def test_the_widest_pictures_fit_into_files(client: RawClient) -> None:
    spec = spec_of(opencv_camera(32768, 2), outputs=("color", "alpha"))
    reply = client.render(spec, cloud=sphere_cloud(), formats=formats_of({"color": JPEG, "alpha": PNG}))
    assert pixels(*files_of(reply, "color"), "JPEG").shape == (2, 32768, 3)
    assert pixels(*files_of(reply, "alpha"), "PNG").shape == (2, 32768)


def test_the_device_goes_on_while_files_are_made(client: RawClient) -> None:
    # Noise takes long to compress, but little time to render: many small spheres, seen by many cameras.
    scene_id = client.put(sphere_cloud(3000, radius=0.02)).scene.scene_id
    small = spec_of(opencv_camera(16, 16), scene_id=scene_id)

    def ends_during_compression(views: int) -> bool:
        """Whether a small render ended while the images of a large one were being compressed."""
        large = spec_of(*[opencv_camera(512, 512, x=0.01 * index) for index in range(views)], scene_id=scene_id)
        ended: list[float] = []
        with ThreadPoolExecutor(1) as pool:
            files = pool.submit(lambda: (client.render(large, formats=formats_of({"color": PNG})), time.monotonic()))
            while not files.done():
                client.render(small)
                ended.append(time.monotonic())
        reply, end = files.result()
        stages = {stage.name: stage.milliseconds / 1e3 for stage in reply.timings.stages}
        begun = end - stages["encode"] - stages["compress"]
        return any(begun < moment < begun + 0.9 * stages["compress"] for moment in ended)

    # A small render may take as long as the compression on a busy machine.
    assert any(map(ends_during_compression, (24, 24, 48, 48, 96, 96, 192)))
