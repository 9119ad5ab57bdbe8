"""Batches of renders: similar ones are computed together, each has its own status, and limits apply to all."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc import error_details_pb2, status_pb2

from lumigrad.protos import details
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import camera_pb2, errors_pb2, image_pb2, render_pb2
from support.calls.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, failure, opencv_camera, scene_of, spec_of, sphere_cloud, violation
from support.workers.worker import WorkerProcess, worker_fixture

FORMATS = {"color": image_pb2.IMAGE_FORMAT_UINT8, "depth": image_pb2.IMAGE_FORMAT_FLOAT16}
SENSOR = ("color", "depth", "ids")
MAX_CAMERAS, MAX_PIXELS = 20, 20_000
process = worker_fixture("--max-cameras", str(MAX_CAMERAS), "--max-pixels", str(MAX_PIXELS), "--max-payload-mib", "1")


@pytest.fixture(scope="module")
def scenes(client: RawClient) -> dict[str, str]:
    clouds = {
        "spheres": sphere_cloud(60, seed=1),
        "gaussians": gaussian_cloud(80, seed=2),
        "others": gaussian_cloud(50, coefficients=0, seed=3),
    }
    return {name: client.put(cloud).scene.scene_id for name, cloud in clouds.items()}


def item(spec: render_pb2.RenderSpec, **formats: int) -> render_pb2.RenderItem:
    return render_pb2.RenderItem(
        spec=spec, formats=[image_pb2.OutputFormat(name=name, format=kind) for name, kind in formats.items()]
    )


def mixture(scenes: dict[str, str]) -> list[render_pb2.RenderItem]:
    """Returns items with both kinds of scenes, and several sizes, lenses, numbers of cameras, outputs and formats."""
    fisheye = camera_of(camera_pb2.PROJECTION_FISHEYE, width=24, height=20)
    distorted = camera_of(distortion=(-0.12, 0.05, 0.004, -0.003), width=24, height=20)
    return [
        item(gaussian_spec(opencv_camera(32, 24), scene_id=scenes["gaussians"], outputs=SENSOR), **FORMATS),
        item(spec_of(opencv_camera(32, 24), scene_id=scenes["spheres"], outputs=["color", "sphere_ids"])),
        item(gaussian_spec(fisheye, scene_id=scenes["others"])),
        item(
            gaussian_spec(
                *[opencv_camera(32, 24, x=0.1), opencv_camera(32, 24, x=0.2)],
                scene_id=scenes["gaussians"],
                outputs=SENSOR,
            ),
            **FORMATS,
        ),
        item(gaussian_spec(opencv_camera(32, 24), scene_id=scenes["others"], outputs=SENSOR), **FORMATS),
        item(gaussian_spec(distorted, scene_id=scenes["others"], outputs=["color"]), color=image_pb2.IMAGE_FORMAT_PNG),
        item(gaussian_spec(opencv_camera(16, 40), scene_id=scenes["gaussians"], outputs=["alpha"])),
    ]


def alone(client: RawClient, one: render_pb2.RenderItem) -> dict[str, bytes]:
    reply = client.render(one.spec, formats=one.formats)
    return {name: array.tobytes() for name, array in reply.arrays.items()}


def code(status: status_pb2.Status) -> grpc.StatusCode:
    return next(code for code in grpc.StatusCode if code.value[0] == status.code)


def field_of(status: status_pb2.Status) -> str:
    found = details.find((details.trailer(status),), error_details_pb2.BadRequest)
    assert found is not None
    return found.field_violations[0].field


def launches(process: WorkerProcess) -> tuple[float, float]:
    return process.metric("lumigrad_batch_views_count"), process.metric("lumigrad_batch_views_sum")


def test_items_are_what_single_calls_return(client: RawClient, scenes: dict[str, str]) -> None:
    items = mixture(scenes)
    batch = client.render_batch(*items)
    assert [one.HasField("status") for one in batch.items] == [False] * len(items)
    for one, found, arrays in zip(items, batch.items, batch.arrays, strict=True):
        assert {name: array.tobytes() for name, array in arrays.items()} == alone(client, one)
        assert found.scene.scene_id == one.spec.scene_ref.scene_id
        files = [output.encoded.lengths for output in found.outputs if output.HasField("encoded")]
        assert len(files) == sum(entry.format == image_pb2.IMAGE_FORMAT_PNG for entry in one.formats)


def test_alike_items_are_one_launch(process: WorkerProcess, client: RawClient, scenes: dict[str, str]) -> None:
    cameras = [opencv_camera(32, 24, x=0.02 * number) for number in range(12)]
    names = ("gaussians", "others", "gaussians", "spheres")
    specs = [
        (spec_of if names[number % 4] == "spheres" else gaussian_spec)(camera, scene_id=scenes[names[number % 4]])
        for number, camera in enumerate(cameras)
    ]
    items = [item(spec) for spec in specs]
    before = launches(process)
    batch = client.render_batch(*items)
    after = launches(process)
    # Each scene has one launch: six views, three, three.
    assert (after[0] - before[0], after[1] - before[1]) == (3, 12)
    assert not any(one.HasField("status") for one in batch.items)
    for one, arrays in zip(items, batch.arrays, strict=True):
        assert arrays["color"].tobytes() == alone(client, one)["color"]


def test_a_bad_item_keeps_no_other_from_its_picture(
    process: WorkerProcess, client: RawClient, scenes: dict[str, str]
) -> None:
    good = gaussian_spec(opencv_camera(16, 12), scene_id=scenes["gaussians"])
    flat = opencv_camera(16, 12)
    flat.opencv.fx = 0
    replaced = gaussian_spec(opencv_camera(16, 12), scene_id=scenes["gaussians"])
    replaced.tensors.add(name="opacities")
    newer = gaussian_spec(opencv_camera(16, 12), scene_id=scenes["gaussians"])
    newer.scene_ref.version = 7
    bad: list[tuple[Any, grpc.StatusCode, str]] = [
        (gaussian_spec(opencv_camera(16, 12), scene_id="none"), grpc.StatusCode.NOT_FOUND, ""),
        (gaussian_spec(flat, scene_id=scenes["gaussians"]), grpc.StatusCode.INVALID_ARGUMENT, "spec.cameras[0]"),
        (render_pb2.RenderSpec(), grpc.StatusCode.INVALID_ARGUMENT, "spec"),
        (spec_of(opencv_camera(16, 12), scene_id=scenes["gaussians"]), grpc.StatusCode.INVALID_ARGUMENT, "spec.gauss"),
        (gaussian_spec(opencv_camera(0, 12), scene_id=scenes["gaussians"]), grpc.StatusCode.INVALID_ARGUMENT, "spec.c"),
        (replaced, grpc.StatusCode.INVALID_ARGUMENT, "spec.tensors"),
        (newer, grpc.StatusCode.FAILED_PRECONDITION, ""),
    ]
    items = [item(good)]
    for spec, _, _ in bad:
        items += [item(spec), item(good)]
    wanted = alone(client, item(good))["color"]
    count = process.metric("lumigrad_batch_items_total", code="OK")
    batch = client.render_batch(*items)
    for index, (found, arrays) in enumerate(zip(batch.items, batch.arrays, strict=True)):
        if index % 2 == 0:
            assert arrays["color"].tobytes() == wanted
            continue
        _, expected, field = bad[index // 2]
        assert code(found.status) == expected, found.status
        assert not arrays
        if expected == grpc.StatusCode.INVALID_ARGUMENT:
            assert field_of(found.status).startswith(f"items[{index}].{field}")
    lost = details.find((details.trailer(batch.items[1].status),), errors_pb2.SceneNotFound)
    assert lost is not None
    assert lost.scene_id == "none"
    assert process.metric("lumigrad_batch_items_total", code="OK") == count + 8
    assert process.metric("lumigrad_batch_items_total", code="NOT_FOUND") >= 1


def test_values_of_a_scene_in_the_call_are_errors_of_its_item(client: RawClient, scenes: dict[str, str]) -> None:
    payload = PayloadWriter()
    cloud, broken = gaussian_cloud(20, seed=5), gaussian_cloud(20, seed=6)
    broken["opacities"][3] = np.nan
    specs = []
    for content in (cloud, broken):
        spec = gaussian_spec(opencv_camera(16, 12))
        spec.scene.CopyFrom(scene_of(content, payload))
        specs.append(spec)
    beyond = gaussian_spec(opencv_camera(16, 12))
    beyond.CopyFrom(specs[0])
    beyond.scene.gaussians.means.payload.offset = 1 << 30
    stored = gaussian_spec(opencv_camera(16, 12), scene_id=scenes["others"])
    batch = client.render_batch(*map(item, (*specs, beyond, stored)), payload=payload)
    assert [one.status.code for one in batch.items] == [0, 3, 3, 0]
    assert field_of(batch.items[1].status).startswith("items[1].spec.scene.gaussians.opacities")
    assert field_of(batch.items[2].status).startswith("items[2].spec.scene.gaussians.means")
    assert batch.arrays[0]["color"].tobytes() == (
        client.render(gaussian_spec(opencv_camera(16, 12)), cloud=cloud).arrays["color"].tobytes()
    )
    assert not batch.items[0].HasField("scene")


def test_nothing_is_a_batch_too(client: RawClient) -> None:
    batch = client.render_batch()
    assert len(batch.items) == 0


def test_limits_hold_for_all_items_together(client: RawClient, scenes: dict[str, str]) -> None:
    def refused(*items: render_pb2.RenderItem) -> tuple[str, str]:
        return violation(failure(lambda: client.render_batch(*items)))

    small = item(gaussian_spec(opencv_camera(16, 12), scene_id=scenes["gaussians"]))
    assert refused(*[small] * (MAX_CAMERAS + 1))[0] == "items"
    pairs = item(gaussian_spec(*[opencv_camera(16, 12)] * 2, scene_id=scenes["gaussians"]))
    field, text = refused(*[pairs] * (MAX_CAMERAS // 2), small)
    assert (field, "--max-cameras" in text) == ("items", True)
    large = item(gaussian_spec(opencv_camera(100, 100), scene_id=scenes["gaussians"]))
    field, text = refused(large, large, small)
    assert (field, "--max-pixels" in text) == ("items", True)
    outputs = ["color", "depth", "alpha", "expected_depth", "inverse_depth", "transmittance", "contributors"]
    several = item(gaussian_spec(opencv_camera(98, 100), scene_id=scenes["others"], outputs=outputs))
    wide = item(spec_of(opencv_camera(98, 100), scene_id=scenes["spheres"], outputs=["info", "weights", "sphere_ids"]))
    field, text = refused(wide, several)
    assert (field, "bytes of reply" in text) == ("items", True)


def test_stages_of_kernels_are_counted_for_their_engine(
    process: WorkerProcess, client: RawClient, scenes: dict[str, str]
) -> None:
    def counts() -> list[float]:
        return [
            sum(
                process.metric("lumigrad_kernel_seconds_count", engine=engine, op="forward", stage=stage)
                for stage in ("project", "blend", "draw", "bin", "sort")
            )
            for engine in ("spheres", "gaussians")
        ]

    before = counts()
    client.render_batch(*mixture(scenes))
    after = counts()
    client.render_batch(mixture(scenes)[1])
    last = counts()
    assert after[0] > before[0]
    assert after[1] > before[1]
    assert (last[0] > after[0], last[1]) == (True, after[1])
