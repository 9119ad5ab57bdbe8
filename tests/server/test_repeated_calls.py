"""Repeated calls are answered as first ones: bit for bit, errors included, however their requests are encoded.

A worker may keep what requests of one kind have in common, and read only the cameras of later Renders if their bytes
have the usual form. Other encodings of the same request take the general path.

Each test runs for LUMIGRAD_FUZZ_SECONDS, by default a fifth of a second.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from lumigrad.protos.service import MESSAGE_BYTES
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import camera_pb2, image_pb2, render_pb2, scene_pb2
from support.calls.answers import ENCODINGS, UNKNOWN, Asker
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.raw_calls import RawClient, opencv_camera, pulsar_camera, spec_of, sphere_cloud
from support.calls.render_kinds import Kind, StoredCloud, kinds, moved, store_clouds
from support.calls.repeats import BATCH, assert_same, damaged, repeat
from support.driving.scenes import SCENE, street
from support.workers.worker import worker, worker_fixture

# Small limits, because damaged requests may ask for large images.
LIMITS = ("--max-pixels", "20000", "--max-cameras", "8")
SEEDS = st.integers(0, 1 << 32)
INFINITE, NOTHING = float("inf"), float("nan")
NUMBERS = (NOTHING, INFINITE, -INFINITE, 0.0, -0.0, -3.0, 1e-300, 1e-45, 1e39, 1e300)
# Statements before a worker serves, after which it keeps lookups for a minute, and what it has prepared for good.
NOTHING_EXPIRES = (
    "from lumigrad.server.rpc import prepared_calls",
    "prepared_calls._LOOK_SECONDS = 60.0",
    "made, make = [], prepared_calls.prepared_render",
    "def kept(*given, **named):\n    made.append(make(*given, **named))\n    return made[-1]",
    "prepared_calls.prepared_render = kept",
)
process = worker_fixture(*LIMITS)


@pytest.fixture(scope="module")
def clouds(client: RawClient) -> list[StoredCloud]:
    return store_clouds(client)


def test_any_render_answers_as_the_same_request_in_other_bytes(asker: Asker, clouds: list[StoredCloud]) -> None:
    codes: Counter[str] = Counter()

    @BATCH
    @given(kinds(clouds), st.lists(SEEDS, min_size=2, max_size=4), st.data())
    def run(kind: Kind, seeds: list[int], data: st.DataObject) -> None:
        way = data.draw(st.sampled_from(Asker.RENDER_WAYS))
        first = kind.with_cameras(seeds[0])
        for seed in seeds:
            request = moved(first, seed)
            raw = request.SerializeToString()
            metadata = data.draw(st.sampled_from(({}, {MESSAGE_BYTES: "3000000"}, {MESSAGE_BYTES: "1000"})))
            found = asker.ask(raw, way, metadata=metadata)
            encoding = data.draw(st.sampled_from(sorted(ENCODINGS)))
            assert_same(found, asker.ask(ENCODINGS[encoding](request), way, metadata=metadata), raw)
            codes[found.code] += 1

    repeat(run)
    assert set(codes) <= {"OK", "INVALID_ARGUMENT"}
    assert codes["OK"] > codes["INVALID_ARGUMENT"]


def change_number(camera: camera_pb2.Camera, place: int, value: float) -> None:
    """Set one of the numbers of a camera."""
    opencv = camera.opencv
    names = ("fx", "fy", "cx", "cy")
    if place < len(names):
        setattr(opencv, names[place], value)
        return
    for values in (opencv.rotation, opencv.translation, opencv.distortion):
        if place - len(names) < len(values):
            values[place - len(names)] = value
            return
        place -= len(values)
    opencv.fx = value


def change_length(camera: camera_pb2.Camera, place: int, count: float) -> None:
    """Give one of the lists of a camera another length."""
    values = (camera.opencv.rotation, camera.opencv.translation, camera.opencv.distortion)[place % 3]
    values[:] = [0.5] * int(count)


def change_size(camera: camera_pb2.Camera, place: int, value: float) -> None:
    """Set width or height."""
    setattr(camera, ("width", "height")[place % 2], int(value))


def change_model(camera: camera_pb2.Camera, place: int, value: float) -> None:
    """Make it a camera of another model, or of an unknown projection."""
    if place % 3 == 0:
        camera.CopyFrom(pulsar_camera(camera.width, camera.height))
    elif place % 3 == 1:
        camera.ClearField("opencv")
    else:
        camera.opencv.projection = int(value)  # type: ignore[assignment]


CHANGES: dict[Callable[[camera_pb2.Camera, int, float], None], st.SearchStrategy[Any]] = {
    change_number: st.sampled_from(NUMBERS),
    change_length: st.sampled_from((0, 1, 2, 3, 4, 5, 8, 9, 10, 18)),
    change_size: st.sampled_from((0, 1, 15, 17, 141, 1 << 14, (1 << 31) - 1, (1 << 32) - 1)),
    change_model: st.sampled_from((-1, 2, 3, 99, 1 << 30)),
}


def test_bad_cameras_are_refused_as_in_a_first_call(asker: Asker, clouds: list[StoredCloud]) -> None:
    codes: Counter[str] = Counter()

    @BATCH
    @given(kinds(clouds), SEEDS, st.data())
    def run(kind: Kind, seed: int, data: st.DataObject) -> None:
        way = data.draw(st.sampled_from(Asker.RENDER_WAYS))
        good = kind.with_cameras(seed)
        if good.spec.cameras[0].WhichOneof("model") != "opencv":
            return
        expected = asker.ask(good.SerializeToString(), way)
        for change, values in CHANGES.items():
            bad = kind.with_cameras(seed)
            camera = bad.spec.cameras[data.draw(st.integers(0, len(bad.spec.cameras) - 1))]
            change(camera, data.draw(st.integers(0, 20)), data.draw(values))
            raw = bad.SerializeToString()
            found = asker.ask(raw, way)
            assert_same(found, asker.ask(UNKNOWN + raw, way), raw)
            codes[found.code] += 1
        # A refused call has no effect on later ones.
        assert_same(asker.ask(good.SerializeToString(), way), expected, good.SerializeToString())

    repeat(run)
    assert set(codes) <= {"OK", "INVALID_ARGUMENT", "RESOURCE_EXHAUSTED"}
    assert codes["INVALID_ARGUMENT"]


def test_damaged_bytes_are_refused_as_in_a_first_call(asker: Asker, clouds: list[StoredCloud]) -> None:
    codes: Counter[str] = Counter()

    @BATCH
    @given(kinds(clouds), SEEDS, st.lists(st.integers(0, 3), min_size=1, max_size=4))
    def run(kind: Kind, seed: int, ways: list[int]) -> None:
        raw = kind.with_cameras(seed).SerializeToString()
        asker.ask(raw)
        for number, way in enumerate(ways):
            bad = damaged(raw, np.random.default_rng(seed + number), way)
            found = asker.ask(bad)
            assert_same(found, asker.ask(UNKNOWN + bad), bad)
            codes[found.code] += 1

    repeat(run)
    assert set(codes) <= {"OK", "INVALID_ARGUMENT", "NOT_FOUND", "FAILED_PRECONDITION", "RESOURCE_EXHAUSTED"}
    assert codes["INVALID_ARGUMENT"]


def test_a_scene_id_that_is_no_text_is_refused_as_in_a_first_call(client: RawClient, asker: Asker) -> None:
    scene_id = client.put(gaussian_cloud(50, seed=15)).scene.scene_id
    raw = small_request(scene_id).SerializeToString()
    asker.ask(raw)
    bad = raw.replace(scene_id.encode(), b"\xf2" + scene_id[1:].encode())
    found = asker.ask(bad)
    assert found.code == "INVALID_ARGUMENT"
    assert_same(found, asker.ask(UNKNOWN + bad), bad)


def small_request(scene_id: str, x: float = 0.0, outputs: tuple[str, ...] = ("color",)) -> render_pb2.RenderRequest:
    spec = gaussian_spec(opencv_camera(24, 18, x=x), scene_id=scene_id, outputs=outputs)
    return render_pb2.RenderRequest(spec=spec, formats=[image_pb2.OutputFormat(name="color", format=4)])


def test_renders_at_the_same_time_answer_as_one_after_the_other(client: RawClient, asker: Asker) -> None:
    scene_id = client.put(gaussian_cloud(50, seed=11)).scene.scene_id
    requests = [small_request(scene_id, 0.02 * view) for view in range(12)]
    with ThreadPoolExecutor(6) as threads:
        for way in ("single", "stream", "frames"):
            expected = [asker.ask(ENCODINGS["reversed"](request), way) for request in requests]
            found = threads.map(lambda request: asker.ask(request.SerializeToString(), way), requests * 4)  # noqa: B023
            for index, answer in enumerate(found):
                request = requests[index % len(requests)]
                assert_same(answer, expected[index % len(requests)], request.SerializeToString())


def test_a_repeated_render_is_of_the_scene_as_it_is() -> None:
    with (
        worker("--device", "cpu", before=NOTHING_EXPIRES) as started,
        closing(RawClient(started.target)) as client,
        closing(Asker(client)) as asker,
    ):
        stored = client.put(gaussian_cloud(50, seed=12)).scene
        request = small_request(stored.scene_id)
        raw, other = request.SerializeToString(), ENCODINGS["reversed"](request)
        before = [asker.ask(raw) for _ in range(3)][-1]
        opacities = np.full(50, 0.3, np.float32)
        client.update(stored.scene_id, stored.version, {"opacities": opacities})
        after = asker.ask(raw)
        assert after.is_ok and after.values != before.values
        assert_same(after, asker.ask(other), raw)
        request.spec.scene_ref.version = stored.version
        outdated = asker.ask(request.SerializeToString())
        assert outdated.code == "FAILED_PRECONDITION"
        assert_same(outdated, asker.ask(ENCODINGS["reversed"](request)), raw)
        client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=stored.scene_id), timeout=60)
        refused = asker.ask(raw)
        assert refused.code == "NOT_FOUND"
        assert_same(refused, asker.ask(UNKNOWN + raw), raw)


def test_a_scene_by_name_answers_as_the_same_request_in_other_bytes(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--sensorsim", str(street(tmp_path).folder))
    with worker(*options) as started, closing(RawClient(started.target)) as client, closing(Asker(client)) as asker:
        for view in range(3):
            request = small_request("", 0.1 * view)
            request.spec.scene_ref.name = SCENE
            raw = request.SerializeToString()
            found = asker.ask(raw)
            assert found.is_ok
            assert_same(found, asker.ask(ENCODINGS["reversed"](request)), raw)
        request.spec.scene_ref.version = 1
        assert asker.ask(request.SerializeToString()).code == "INVALID_ARGUMENT"


@pytest.mark.parametrize("priority", ["interactive", "batch", "nonsense"])
def test_metadata_mean_the_same_in_repeated_renders(client: RawClient, asker: Asker, priority: str) -> None:
    raw = small_request(client.put(gaussian_cloud(50, seed=14)).scene.scene_id).SerializeToString()
    asker.ask(raw)
    metadata = {"lumigrad-priority": priority, "x-request-id": "my-own"}
    assert_same(asker.ask(raw, metadata=metadata), asker.ask(UNKNOWN + raw, metadata=metadata), raw)


@pytest.mark.parametrize("way", Asker.WAYS)
@pytest.mark.parametrize("is_sphere", [False, True])
def test_gradients_of_a_retained_render_are_those_of_other_bytes(
    client: RawClient, asker: Asker, way: str, is_sphere: bool
) -> None:
    cloud, spec_for = (sphere_cloud(50), spec_of) if is_sphere else (gaussian_cloud(50), gaussian_spec)
    scene_id = client.put(cloud).scene.scene_id
    for view in range(3):
        spec = spec_for(opencv_camera(24, 18, x=0.1 * view), scene_id=scene_id)
        context = client.render(spec, retain=True).header.context_id
        for seed, wanted in enumerate([(), ("cameras",), ("nonsense",)]):
            payload = PayloadWriter()
            gradient = np.random.default_rng(seed).normal(size=(1, 18, 24, 3 + (view == 2))).astype(np.float32)
            request = render_pb2.BackwardRequest(spec={"context_id": context, "wanted": wanted})
            request.spec.output_gradients.add(name="color", tensor=payload.add(gradient))
            request.data, request.payload_bytes = b"".join(payload.buffers), payload.length
            raw = request.SerializeToString()
            found = asker.ask(raw, way, "RenderService/Backward")
            assert found.is_ok == (wanted != ("nonsense",) and view < 2)
            for encode in ENCODINGS.values():
                assert_same(found, asker.ask(encode(request), way, "RenderService/Backward"), raw)
        client.render_stub.Release(render_pb2.ReleaseRequest(context_id=context), timeout=60)
        assert_same(*(asker.ask(each, way, "RenderService/Backward") for each in (raw, UNKNOWN + raw)), raw)
