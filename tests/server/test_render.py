"""Render and Backward over the network return what the kernels compute in-process, bit for bit."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

import grpc
import numpy as np
import pytest
import torch

from lumigrad.kernels import spheres
from lumigrad.protos import dtypes
from lumigrad.protos.chunks import CHUNK_BYTES, LARGEST_MESSAGE_BYTES, SHORT_BYTES
from lumigrad.protos.service import MESSAGE_BYTES, SINGLE_REPLY
from lumigrad.protos.wire import Frame
from lumigrad.server.core.config import Config
from lumigrad.server.core.limits import Limits
from lumigrad.server.engines.spheres import sphere_plan
from lumigrad.v1 import camera_pb2, errors_pb2, render_pb2, scene_pb2, spheres_pb2
from support.calls.raw_calls import (
    Array,
    Arrays,
    RawClient,
    Reply,
    color_gradient,
    detail,
    failure,
    opencv_camera,
    pulsar_camera,
    reply_of,
    spec_of,
    sphere_cloud,
    violation,
)
from support.workers.worker import WorkerProcess, worker

ALL_OUTPUTS = ("color", "alpha", "depth", "info", "sphere_ids", "weights", "hits")
CLOUD = sphere_cloud()


def kernel_camera(message: camera_pb2.Camera) -> spheres.Camera:
    if message.HasField("pulsar"):
        return spheres.Camera.pulsar(tuple(message.pulsar.parameters), message.width, message.height)
    model = message.opencv
    rotation = np.array(model.rotation).reshape(3, 3)
    return spheres.Camera.opencv(
        model.fx, model.fy, model.cx, model.cy, rotation, list(model.translation), message.width, message.height
    )


def kernel_forward(spec: render_pb2.RenderSpec, cloud: Arrays, **options: Any) -> spheres.Forward:
    settings = spec.spheres
    compat = settings.semantics == spheres_pb2.SEMANTICS_COMPAT
    tensors = {name: torch.from_numpy(array) for name, array in cloud.items()}
    return spheres.forward(
        tensors["positions"],
        tensors["colors"],
        tensors["radii"],
        [kernel_camera(camera) for camera in spec.cameras],
        spheres.Settings(
            gamma=settings.gamma,
            max_depth=settings.max_depth,
            min_depth=settings.min_depth,
            semantics="compat" if compat else "exact",
        ),
        opacities=tensors.get("opacities"),
        background=torch.tensor(list(settings.background)) if settings.background else None,
        outputs=tuple(spec.outputs) or ("color",),
        **options,
    )


def same_bits(remote: Mapping[str, Array], local: Mapping[str, torch.Tensor]) -> None:
    assert list(remote) == list(local)
    for name, tensor in local.items():
        assert remote[name].shape == tuple(tensor.shape), name
        # Ids in "info" are bit patterns, some of them NaN: compare bytes, not numbers.
        assert remote[name].tobytes() == tensor.contiguous().numpy().tobytes(), name


@pytest.fixture(scope="module")
def scene_id(client: RawClient) -> str:
    return client.put(CLOUD).scene.scene_id


@pytest.mark.parametrize("semantics", [spheres_pb2.SEMANTICS_EXACT, spheres_pb2.SEMANTICS_COMPAT])
@pytest.mark.parametrize("make", [opencv_camera, pulsar_camera])
def test_every_output_of_a_stored_scene_is_the_kernels_own(
    client: RawClient, scene_id: str, make: Any, semantics: int
) -> None:
    settings = {"semantics": semantics, "min_depth": 1.5, "background": [0.1, 0.2, 0.3]}
    spec = spec_of(make(), scene_id=scene_id, outputs=ALL_OUTPUTS, **settings)
    same_bits(client.render(spec).arrays, kernel_forward(spec, CLOUD).outputs)


def test_several_cameras_share_the_depth_range_of_their_call(client: RawClient, scene_id: str) -> None:
    cameras = [pulsar_camera(focal=1.0), pulsar_camera(focal=2.0), opencv_camera(x=0.3)]
    spec = spec_of(*cameras, scene_id=scene_id, outputs=("color", "depth"), min_depth=0.0)
    same_bits(client.render(spec).arrays, kernel_forward(spec, CLOUD).outputs)


@pytest.mark.parametrize("deterministic", [False, True])
def test_the_order_of_sums_is_that_of_the_request(deterministic: bool) -> None:
    spec = spec_of(deterministic=deterministic)
    shapes = {name: list(array.shape) for name, array in CLOUD.items()}
    assert sphere_plan(spec, shapes, Limits.of(Config()), "spec").settings.deterministic == deterministic


def test_a_scene_may_travel_with_the_call_and_leaves_nothing_behind(client: RawClient) -> None:
    before = client.scene_stub.List(scene_pb2.ListRequest(), timeout=60)
    cloud = {**sphere_cloud(seed=9), "opacities": np.linspace(0, 1, 200, dtype=np.float32)}
    reply = client.render(spec_of(), cloud=cloud)
    same_bits(reply.arrays, kernel_forward(spec_of(), cloud).outputs)
    assert not reply.header.HasField("scene")
    assert client.scene_stub.List(scene_pb2.ListRequest(), timeout=60) == before


def test_no_spheres_give_the_background(client: RawClient) -> None:
    spec = spec_of(background=[0.25, 0.5, 1.0])
    color = client.render(spec, cloud=sphere_cloud(0)).arrays["color"]
    assert (color == np.array([0.25, 0.5, 1.0], np.float32)).all()


def test_a_large_reply_comes_in_chunks_and_says_where_its_time_went(client: RawClient, scene_id: str) -> None:
    spec = spec_of(opencv_camera(512, 512), scene_id=scene_id, outputs=("color", "weights"))
    reply = client.render(spec)
    same_bits(reply.arrays, kernel_forward(spec, CLOUD).outputs)
    assert reply.header.payload_bytes == 512 * 512 * (3 + 5) * 4
    assert [frame.data.nbytes for frame in reply.frames] == [0, *[CHUNK_BYTES] * 8, 0]
    check_timings(reply, "decode", "queue", "kernel.blend", "download", "encode")


@pytest.mark.parametrize(("size", "taken"), [(16, ()), (512, ((MESSAGE_BYTES, str(4 << 20)),))])
def test_a_reply_may_come_with_the_status_if_it_is_short_or_its_caller_takes_it(
    client: RawClient, scene_id: str, size: int, taken: tuple[tuple[str, str], ...]
) -> None:
    spec = spec_of(opencv_camera(size, size), scene_id=scene_id)
    request = Frame(render_pb2.RenderRequest(spec=spec))
    frame = client.render_stub.Render.once(request, timeout=60, metadata=(SINGLE_REPLY, *taken))
    reply = reply_of(iter([frame]), lambda header: header.outputs)
    same_bits(reply.arrays, kernel_forward(spec, CLOUD).outputs)
    check_timings(reply, "decode", "queue", "kernel.blend", "download")


def test_a_long_reply_does_not_come_with_the_status_and_leaves_no_forward_state(
    client: RawClient, shared_worker: WorkerProcess, scene_id: str
) -> None:
    spec = spec_of(opencv_camera(128, 128), scene_id=scene_id)
    request = Frame(render_pb2.RenderRequest(spec=spec, retain=True))
    before = states(shared_worker)
    error = failure(lambda: client.render_stub.Render.once(request, timeout=60, metadata=(SINGLE_REPLY,)))
    limit = "expected a reply with at most 65536 bytes of payload; call without this metadata, got a longer one"
    assert violation(error) == ("lumigrad-single-reply", limit)
    assert states(shared_worker) == before


@pytest.mark.parametrize("most", [0, 1000, 65536, 786432, 1 << 40])
def test_a_reply_is_one_message_as_far_as_its_caller_takes_such(client: RawClient, scene_id: str, most: int) -> None:
    # Sizes from small to larger than any message: 3 KiB, 192 KiB, 768 KiB and 12 MiB, and their headers.
    for size in (16, 128, 256, 1024):
        spec = spec_of(opencv_camera(size, size), scene_id=scene_id)
        reply = client.render(spec, metadata=((MESSAGE_BYTES, str(most)),))
        length, header = reply.header.payload_bytes, reply.frames[0].message.ByteSize()
        is_whole = length <= most if length <= SHORT_BYTES else length + header <= min(most, LARGEST_MESSAGE_BYTES)
        assert (len(reply.frames) == 1) == is_whole
        same_bits(reply.arrays, kernel_forward(spec, CLOUD).outputs)
        check_timings(reply, "decode", "queue", "kernel.blend", "download")


@pytest.mark.parametrize("given", ["", "-1", "1e6", "9" * 19])
def test_a_message_length_that_is_no_number_is_refused(client: RawClient, given: str) -> None:
    error = failure(lambda: client.render(spec_of(), cloud=sphere_cloud(1), metadata=((MESSAGE_BYTES, given),)))
    assert violation(error) == (MESSAGE_BYTES, f"expected a number of bytes, got {given}")


def test_gradients_come_as_one_message_too(client: RawClient, scene_id: str) -> None:
    spec = spec_of(opencv_camera(16, 16), scene_id=scene_id)
    cloud = sphere_cloud(20_000)
    gradients = {"color": np.ones((1, 16, 16, 3), np.float32)}
    chunked = client.backward(gradients, spec=spec, cloud=cloud)
    whole = client.backward(gradients, spec=spec, cloud=cloud, metadata=((MESSAGE_BYTES, str(4 << 20)),))
    assert (len(chunked.frames), len(whole.frames)) == (3, 1)
    assert chunked.header.payload_bytes > SHORT_BYTES
    for name, array in chunked.arrays.items():
        assert whole.arrays[name].tobytes() == array.tobytes(), name


def states(process: WorkerProcess) -> float:
    """The number of forward states that are stored or have been evicted: those of earlier tests expire at any time."""
    samples = re.findall(
        r'^lumigrad_(?:contexts|evictions_total{.*"contexts".*}) (\S+)$', process.metrics(), re.MULTILINE
    )
    return sum(map(float, samples))


def check_timings(reply: Reply, *stages: str) -> None:
    times = {stage.name: stage.milliseconds for stage in reply.timings.stages}
    assert set(stages) <= set(times)
    assert times["kernel.blend"] > 0
    outside = sum(value for name, value in times.items() if not name.startswith("kernel."))
    assert outside < reply.timings.total_milliseconds


WANTED = ("positions", "colors", "radii", "opacities", "cameras", "background", "gamma")


@pytest.mark.parametrize("make", [opencv_camera, pulsar_camera])
def test_gradients_from_a_context_or_from_scratch_are_the_kernels_own(
    client: RawClient, scene_id: str, make: Any
) -> None:
    spec = spec_of(make(), make(), scene_id=scene_id, outputs=("color", "depth"), min_depth=1.5)
    gradients = {"color": color_gradient(2, 48, 64, 3), "depth": color_gradient(2, 48, 64)}
    state = kernel_forward(spec, CLOUD, retain=True).state
    local = spheres.backward(state, {name: torch.from_numpy(array) for name, array in gradients.items()}, WANTED)
    context_id = client.render(spec, retain=True).header.context_id
    # A context can be used several times.
    for _ in range(2):
        check_gradients(client.backward(gradients, context_id=context_id, wanted=WANTED), local)
    check_gradients(client.backward(gradients, spec=spec, wanted=WANTED), local)
    inline = spec_of(*spec.cameras, outputs=("color", "depth"), min_depth=1.5)
    check_gradients(client.backward(gradients, spec=inline, cloud=CLOUD, wanted=WANTED), local)


def check_gradients(reply: Reply, local: spheres.Backward) -> None:
    assert set(reply.arrays) == set(local.gradients)
    same_bits({name: reply.arrays[name] for name in local.gradients}, local.gradients)
    check_timings(reply, "decode", "queue", "upload", "kernel.blend", "download")


def test_compat_differentiates_the_colour_alone(client: RawClient, scene_id: str) -> None:
    spec = spec_of(scene_id=scene_id, semantics=spheres_pb2.SEMANTICS_COMPAT)
    gradients = {"color": color_gradient(1, 48, 64, 3)}
    state = kernel_forward(spec, CLOUD, retain=True).state
    local = spheres.backward(state, {"color": torch.from_numpy(gradients["color"])})
    check_gradients(client.backward(gradients, spec=spec), local)
    error = failure(lambda: client.backward({"alpha": color_gradient(1, 48, 64)}, spec=spec))
    assert violation(error)[0] == "spec.output_gradients"


def test_a_released_context_is_lost_and_says_so(client: RawClient, scene_id: str) -> None:
    gradients = {"color": color_gradient(1, 48, 64, 3)}
    context_id = client.render(spec_of(scene_id=scene_id), retain=True).header.context_id
    client.backward(gradients, context_id=context_id, release=True)
    error = failure(lambda: client.backward(gradients, context_id=context_id))
    assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert detail(error, errors_pb2.ContextLost).context_id == context_id
    other = client.render(spec_of(scene_id=scene_id), retain=True).header.context_id
    for _ in range(2):
        client.render_stub.Release(render_pb2.ReleaseRequest(context_id=other), timeout=60)
    assert failure(lambda: client.backward(gradients, context_id=other)).code() == grpc.StatusCode.FAILED_PRECONDITION


def test_a_context_keeps_the_scene_as_it_was(client: RawClient) -> None:
    cloud = sphere_cloud(seed=4)
    scene = client.put(cloud).scene
    spec = spec_of(scene_id=scene.scene_id)
    gradients = {"color": color_gradient(1, 48, 64, 3)}
    expected = client.backward(gradients, spec=spec).arrays
    context_id = client.render(spec, retain=True).header.context_id
    client.update(scene.scene_id, 1, {"positions": cloud["positions"] + np.float32(0.1)})
    client.scene_stub.Delete(scene_pb2.DeleteRequest(scene_id=scene.scene_id), timeout=60)
    kept = client.backward(gradients, context_id=context_id).arrays
    assert {name: array.tobytes() for name, array in kept.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }


def test_sparse_gradients_are_the_rows_that_are_not_zero(client: RawClient, scene_id: str) -> None:
    # The camera sees only a part of the spheres.
    spec = spec_of(opencv_camera(16, 16, x=1.0), scene_id=scene_id)
    spec.cameras[0].opencv.fx = spec.cameras[0].opencv.fy = 200
    gradients = {"color": color_gradient(1, 16, 16, 3)}
    dense = client.backward(gradients, spec=spec, wanted=WANTED).arrays
    sparse = client.backward(gradients, spec=spec, wanted=WANTED, format={"sparse": True}).arrays
    index = sparse.pop("index")
    assert index.dtype == np.int64
    assert (np.diff(index) > 0).all()
    assert 0 < len(index) < len(CLOUD["radii"])
    for name in ("positions", "colors", "radii", "opacities"):
        full = np.zeros_like(dense[name])
        full[index] = sparse[name]
        assert (full == dense[name]).all()
    for name in ("background", "gamma", "camera_rotation"):
        assert sparse[name].tobytes() == dense[name].tobytes()


@pytest.mark.parametrize(("dtype", "torch_dtype"), [(dtypes.FLOAT16, torch.float16), (dtypes.BFLOAT16, torch.bfloat16)])
def test_gradients_come_in_short_formats_on_request(
    client: RawClient, scene_id: str, dtype: Any, torch_dtype: torch.dtype
) -> None:
    spec = spec_of(scene_id=scene_id)
    gradients = {"color": color_gradient(1, 48, 64, 3)}
    full = client.backward(gradients, spec=spec, wanted=WANTED).arrays
    reply = client.backward(gradients, spec=spec, wanted=WANTED, format={"dtype": dtype})
    sent = {entry.name: entry.tensor.dtype for entry in reply.header.gradients}
    for name in ("positions", "colors", "radii", "opacities"):
        assert sent[name] == dtype
        assert (reply.arrays[name] == torch.from_numpy(full[name].copy()).to(torch_dtype).float().numpy()).all()
    assert sent["camera_rotation"] == sent["background"] == dtypes.FLOAT32


def test_output_gradients_may_be_short_too(client: RawClient, scene_id: str) -> None:
    spec = spec_of(scene_id=scene_id)
    exact = np.random.default_rng(0).integers(-8, 8, (1, 48, 64, 3)).astype(np.float32)
    expected = client.backward({"color": exact}, spec=spec).arrays
    half = client.backward({"color": exact.astype(np.float16)}, spec=spec).arrays
    brain = client.backward({"color": dtypes.float32_to_bfloat16(exact)}, spec=spec, dtype=dtypes.BFLOAT16).arrays
    for name, array in expected.items():
        assert half[name].tobytes() == brain[name].tobytes() == array.tobytes()


def test_the_least_recently_used_context_makes_room_and_unused_ones_expire() -> None:
    gradients = {"color": color_gradient(1, 256, 256, 3)}
    with worker("--device", "cpu", "--context-mib", "4", "--context-seconds", "1") as process:
        client = RawClient(process.target)
        spec = spec_of(opencv_camera(256, 256), scene_id=client.put(CLOUD).scene.scene_id)

        def is_lost(context_id: str) -> bool:
            try:
                client.backward(gradients, context_id=context_id)
            except grpc.RpcError as error:
                assert error.code() == grpc.StatusCode.FAILED_PRECONDITION
                return True
            return False

        def evicted(reason: str) -> float:
            return process.metric("lumigrad_evictions_total", store="contexts", reason=reason)

        for _ in range(20):
            expired, removed = evicted("idle"), evicted("room")
            contexts = [client.render(spec, retain=True).header.context_id for _ in range(3)]
            assert is_lost(contexts[0])
            is_newest_lost = is_lost(contexts[2])
            if evicted("idle") == expired:
                break
            # A busy machine took longer than the states last: once more with others.
            wait_until_expired(process)
        assert not is_newest_lost and evicted("room") == removed + 1
        assert process.metric("lumigrad_context_bytes") <= 4 << 20
        wait_until_expired(process)
        assert is_lost(contexts[2])
        large = spec_of(opencv_camera(1024, 1024), scene_id=spec.scene_ref.scene_id)
        # A context that is too large by itself is not kept, but the picture is returned.
        assert client.render(large, retain=True).header.context_id == ""
        assert process.metric("lumigrad_evictions_total", store="contexts", reason="size") == 1
        client.close()


def wait_until_expired(process: WorkerProcess) -> None:
    until = time.monotonic() + 60
    while process.metric("lumigrad_contexts"):
        assert time.monotonic() < until
        time.sleep(0.1)


def test_depth_is_differentiable_where_it_was_rendered(client: RawClient, scene_id: str) -> None:
    gradient = {"depth": color_gradient(1, 48, 64)}
    context_id = client.render(spec_of(scene_id=scene_id), retain=True).header.context_id
    error = failure(lambda: client.backward(gradient, context_id=context_id))
    assert violation(error)[0] == "spec.output_gradients"
    # Without a context, the worker renders what it needs, whatever outputs the spec names.
    spec = spec_of(scene_id=scene_id)
    assert np.abs(client.backward(gradient, spec=spec).arrays["positions"]).max() > 0


@pytest.mark.parametrize("sparse", [False, True])
def test_no_spheres_have_no_gradients(client: RawClient, sparse: bool) -> None:
    gradient = {"color": color_gradient(1, 48, 64, 3)}
    reply = client.backward(
        gradient, spec=spec_of(), cloud=sphere_cloud(0), wanted=["positions", "background"], format={"sparse": sparse}
    )
    assert reply.arrays["positions"].shape == (0, 3)
    # The whole picture is background.
    assert np.allclose(reply.arrays["background"], gradient["color"].sum((0, 1, 2)), rtol=1e-4, atol=1e-3)
