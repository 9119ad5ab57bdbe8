"""Repeated Renders with images in a lane are answered as first ones and as those of the stream: bit for bit."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import grpc
import numpy as np
import pytest

from lumigrad.protos.chunks import LARGEST_MESSAGE_BYTES
from lumigrad.protos.service import MESSAGE_BYTES
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import image_pb2, render_pb2, tensor_pb2
from support.backends import emulation
from support.calls.answers import UNKNOWN, Answer, Asker
from support.calls.gaussian_calls import gaussian_cloud, gaussian_spec
from support.calls.lane_frames import LaneFrames, camera, expected, stored_request
from support.calls.raw_calls import RawClient, opencv_camera, spec_of, sphere_cloud
from support.calls.raw_lane import RawLane
from support.calls.repeats import GENERAL_PATH, TELL_OF_GENERAL_PATH, assert_same
from support.workers.worker import WorkerProcess, worker

FORMATS = (
    image_pb2.IMAGE_FORMAT_FLOAT32,
    image_pb2.IMAGE_FORMAT_UINT8,
    image_pb2.IMAGE_FORMAT_FLOAT16,
    image_pb2.IMAGE_FORMAT_BFLOAT16,
    image_pb2.IMAGE_FORMAT_PNG,
)
# Outputs and sizes: one large image, two, a large and a small one, two that are large together, several small ones.
IMAGES = (
    (("color",), (400, 300)),
    (("color", "alpha"), (512, 400)),
    (("color", "alpha"), (300, 200)),
    (("color", "alpha"), (170, 120)),
    (("color", "alpha"), (64, 48)),
)


@pytest.fixture(scope="module", params=[False, True], ids=["cpu", "emulation"])
def is_emulated(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def process(is_emulated: bool) -> Iterator[WorkerProcess]:
    if is_emulated:
        emulation.load("_emulation")
    with worker("--device", "cpu", emulated=is_emulated, before=TELL_OF_GENERAL_PATH) as started:
        yield started


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("outputs", "size"), IMAGES)
@pytest.mark.parametrize("is_sphere", [False, True])
@pytest.mark.parametrize("retain", [False, True])
def test_images_by_a_lane_are_the_same(
    client: RawClient,
    asker: Asker,
    is_sphere: bool,
    outputs: tuple[str, ...],
    size: tuple[int, int],
    form: int,
    retain: bool,
) -> None:
    cloud, spec_for = (sphere_cloud(60), spec_of) if is_sphere else (gaussian_cloud(60), gaussian_spec)
    scene_id = client.put(cloud).scene.scene_id
    for view in range(3):
        spec = spec_for(opencv_camera(*size, x=0.1 * view), scene_id=scene_id, outputs=outputs)
        formats = [image_pb2.OutputFormat(name="color", format=form)]
        raw = render_pb2.RenderRequest(spec=spec, formats=formats, retain=retain).SerializeToString()
        found = asker.ask(raw, "lane")
        assert found.is_ok
        assert_same(found, asker.ask(UNKNOWN + raw, "lane"), raw)
        assert found.values == asker.ask(UNKNOWN + raw, "stream").values


# Gradients that are asked for: all large, all small, some of each.
@pytest.mark.parametrize("wanted", [("means", "colors"), ("background",), ("means", "background")])
@pytest.mark.parametrize("form", [1, 2, 3], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("dtype", [1, 2, 3], ids=["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("uploaded", [("color", "alpha"), ("color",), ()])
@pytest.mark.parametrize("is_sphere", [False, True])
def test_gradients_by_a_lane_are_the_same(
    process: WorkerProcess,
    client: RawClient,
    is_emulated: bool,
    is_sphere: bool,
    uploaded: tuple[str, ...],
    dtype: int,
    form: int,
    wanted: tuple[str, ...],
) -> None:
    cloud, spec_for = (sphere_cloud, spec_of) if is_sphere else (gaussian_cloud, gaussian_spec)
    # On the emulated device, which is slow, all gradients are small.
    count = 300 if is_emulated else 44_000
    scene_id = client.put(cloud(count, radius=0.01) if is_sphere else cloud(count)).scene.scene_id
    spec = spec_for(opencv_camera(160, 150), scene_id=scene_id, outputs=["color"])
    getattr(spec, spec.WhichOneof("settings")).deterministic = True
    names = [name.replace("means", "positions") if is_sphere else name.replace("colors", "quats") for name in wanted]
    asker = Asker(client, keeps=True)
    render = render_pb2.RenderRequest(spec=spec, retain=True).SerializeToString()
    contexts = []
    for _ in range(2):
        assert asker.ask(render, "lane").is_ok
        contexts.append(asker.kept)

    def ask(seed: int, way: str, regions: Collection[str], prefix: bytes = b"") -> Answer:
        random, payload = np.random.default_rng(seed), PayloadWriter()
        backward = render_pb2.BackwardSpec(context_id=contexts[1], wanted=names)
        backward.format.dtype = form  # type: ignore[assignment]
        with ExitStack() as stack:
            for name, shape in (("color", (1, 150, 160, 3)), ("alpha", (1, 150, 160))):
                # Small enough that no gradient of a sphere is too large for float16, which takes the general path.
                values = bits_of(random.normal(scale=1 / 64, size=shape).astype(np.float32), dtype)
                in_lane = name in regions
                tensor = stack.enter_context(asker.uploaded(values, dtype)) if in_lane else payload.add(values, dtype)
                backward.output_gradients.add(name=name, tensor=tensor)
            data = b"".join(payload.buffers)
            request = render_pb2.BackwardRequest(spec=backward, payload_bytes=len(data), data=data)
            return asker.ask(prefix + request.SerializeToString(), way, "RenderService/Backward")

    told = f"{GENERAL_PATH} backward"
    before = process.log.count(told)
    for seed in range(3):
        found = ask(seed, "lane", uploaded)
        assert found.is_ok
        assert_same(found, ask(seed, "lane", uploaded, UNKNOWN), b"")
        assert found.values == ask(seed, "stream", (), UNKNOWN).values
    # Replies only partly in shared memory take the general path, and on devices other than the CPU all spheres do. The
    # last call of all has taken it, so that no line is missing from the log.
    is_general = is_sphere if is_emulated else len(set(names) & {"means", "positions", "background"}) == 2
    count = before + 2 * 3 + (3 if is_general else 1)
    process.wait_for_log(told, count=count)
    assert process.log.count(told) == count
    for name in contexts:
        client.render_stub.Release(render_pb2.ReleaseRequest(context_id=name), timeout=60)
    asker.close()


def bits_of(values: np.ndarray, dtype: int) -> np.ndarray:
    """The values as a type of floats; as bfloat16 by cutting off bits."""
    if dtype == tensor_pb2.DTYPE_BFLOAT16:
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(np.float16 if dtype == tensor_pb2.DTYPE_FLOAT16 else np.float32)


@pytest.mark.parametrize("most", [None, LARGEST_MESSAGE_BYTES, 299_000, 301_000])
def test_images_that_are_small_each_go_where_those_of_first_calls_go(
    client: RawClient, asker: Asker, most: int | None
) -> None:
    """The images are large together, and those that do not fit into the message go through the lane."""
    scene_id = client.put(gaussian_cloud(60, seed=6)).scene.scene_id
    metadata = {} if most is None else {MESSAGE_BYTES: str(most)}
    for view in range(3):
        camera = opencv_camera(150, 100, x=0.1 * view)
        spec = gaussian_spec(camera, scene_id=scene_id, outputs=("color", "alpha", "depth"))
        raw = render_pb2.RenderRequest(spec=spec).SerializeToString()
        found = asker.ask(raw, "lane", metadata=metadata)
        assert found.is_ok
        assert_same(found, asker.ask(UNKNOWN + raw, "lane", metadata=metadata), raw)
        assert found.values == asker.ask(UNKNOWN + raw, "stream").values


def test_kinds_that_were_prepared_by_one_way_are_known_to_the_other(client: RawClient, asker: Asker) -> None:
    scene_id = client.put(gaussian_cloud(60, seed=3)).scene.scene_id
    for number, ways in enumerate((("lane", "stream"), ("stream", "lane"))):
        for view, way in enumerate((*ways, *ways)):
            camera = opencv_camera(300 + number, 300, x=0.1 * view)
            spec = gaussian_spec(camera, scene_id=scene_id, outputs=("color", "alpha"))
            raw = render_pb2.RenderRequest(spec=spec).SerializeToString()
            found = asker.ask(raw, way)
            assert found.is_ok
            assert_same(found, asker.ask(UNKNOWN + raw, way), raw)


@pytest.mark.parametrize("size", [(401, 301), (251, 199)], ids=["two regions", "one for both"])
def test_the_same_bytes_are_counted(
    process: WorkerProcess, client: RawClient, asker: Asker, size: tuple[int, int]
) -> None:
    """Neither size is a multiple of the alignment."""
    scene_id = client.put(gaussian_cloud(60, seed=4)).scene.scene_id
    spec = gaussian_spec(opencv_camera(*size), scene_id=scene_id, outputs=("color", "alpha"))
    formats = [image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_UINT8)]
    raw = render_pb2.RenderRequest(spec=spec, formats=formats).SerializeToString()
    counted = {"method": "RenderService.Render", "direction": "sent"}
    sent = []
    for request in (UNKNOWN + raw, raw, raw, raw):
        before = process.metric("lumigrad_payload_bytes_total", **counted)
        assert asker.ask(request, "lane").is_ok
        sent.append(process.metric("lumigrad_payload_bytes_total", **counted) - before)
    assert sent == [size[0] * size[1] * (3 + 4)] * 4


def test_callers_with_and_without_a_lane_share_batches(process: WorkerProcess, client: RawClient) -> None:
    scene_id = client.put(gaussian_cloud(60, seed=5)).scene.scene_id
    formats = [image_pb2.OutputFormat(name="color", format=image_pb2.IMAGE_FORMAT_FLOAT16)]

    def request(view: int) -> bytes:
        spec = gaussian_spec(opencv_camera(520, 260, x=0.02 * view), scene_id=scene_id, outputs=("color", "alpha"))
        return bytes(render_pb2.RenderRequest(spec=spec, formats=formats).SerializeToString())

    most = {MESSAGE_BYTES: str(LARGEST_MESSAGE_BYTES)}

    def ask_all(number: int) -> list[Answer]:
        own = RawClient(process.target)
        asker = Asker(own)
        try:
            ways = [("lane", "single")[(number + view) % 2] for view in range(8)]
            return [asker.ask(request(view), way, metadata=most) for view, way in enumerate(ways)]
        finally:
            asker.close()
            own.close()

    expected = ask_all(0)
    assert all(answer.is_ok for answer in expected) and len({answer.values for answer in expected}) == 8
    with ThreadPoolExecutor(6) as threads:
        for found in threads.map(ask_all, range(6)):
            assert [answer.values for answer in found] == [answer.values for answer in expected]


def test_lost_lanes_are_refused_as_in_a_first_call(process: WorkerProcess, client: RawClient, asker: Asker) -> None:
    spec = gaussian_spec(opencv_camera(400, 300), scene_id=client.put(gaussian_cloud(60)).scene.scene_id)
    raw = render_pb2.RenderRequest(spec=spec).SerializeToString()
    before = process.metric("lumigrad_lane_bytes")
    expected = asker.ask(raw, "lane")
    asker._lane.offer.token = bytes(16)
    found = asker.ask(raw, "lane")
    assert expected.is_ok and found.code == "FAILED_PRECONDITION"
    assert_same(found, asker.ask(UNKNOWN + raw, "lane"), raw)
    assert process.metric("lumigrad_lane_bytes") <= before + np.prod((400, 300, 3, 4)) * 2


@pytest.mark.parametrize("most", [1, 2, 4])
@pytest.mark.parametrize("outputs", [("color",), ("color", "alpha")])
@pytest.mark.parametrize("form", [image_pb2.IMAGE_FORMAT_FLOAT32, image_pb2.IMAGE_FORMAT_UINT8])
def test_frames_by_a_lane_are_equal_to_renders_at_any_depth(
    client: RawClient, most: int, outputs: tuple[str, ...], form: int
) -> None:
    render = stored_request(client, outputs, form)
    wanted = [expected(client, render, view) for view in range(9)]
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        first, waiting, found = frames.sent + 1, 0, []
        for view in range(9):
            frames.ask(view, pipelined=most > 1 and view % 5 != 4)
            waiting += 1
            if waiting == most:
                found.append(frames.read())
                waiting -= 1
        found += [frames.read() for _ in range(waiting)]
        frames.end()
        assert frames.status() == grpc.StatusCode.OK
        assert frames.sent == first + 8
        # At most this many frames are in flight, and regions are reused.
        assert len(lane.regions) - 1 <= most * len(outputs)
    assert found == wanted


def test_frames_of_spheres_by_a_lane_are_equal_to_renders(client: RawClient) -> None:
    scene_id = client.put(sphere_cloud(60)).scene.scene_id
    spec = spec_of(camera(0), scene_id=scene_id, outputs=["color"], max_depth=9.0)
    render = render_pb2.RenderRequest(spec=spec)
    with RawLane(client) as lane, LaneFrames(client, render, lane) as frames:
        for view in range(3):
            frames.ask(view)
            assert frames.read() == expected(client, render, view)
