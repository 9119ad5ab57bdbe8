"""Nothing that arrives on the port brings the worker down, learns more than a status, or harms another call."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from lumigrad.kernels.gaussians import OUTPUTS
from lumigrad.protos.service import SERVICE_NAMES, Method, methods
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.protos.wire import Frame
from lumigrad.v1 import camera_pb2, errors_pb2, gaussians_pb2, render_pb2, scene_pb2, worker_pb2
from support.gaussian_calls import camera_of, gaussian_cloud, gaussian_spec, inria_camera
from support.raw_calls import (
    Arrays,
    RawClient,
    color_gradient,
    detail,
    failure,
    opencv_camera,
    pulsar_camera,
    scene_of,
    spec_of,
    sphere_cloud,
    violation,
    with_scene,
)
from support.worker import WorkerProcess, worker

Code = grpc.StatusCode
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
# A request may be fine, wrong, too large, or about something that is not here; the worker is never at fault.
CALLERS_FAULT = {Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION, Code.RESOURCE_EXHAUSTED}


@pytest.fixture(scope="module")
def process() -> Iterator[WorkerProcess]:
    # Small limits: a flipped bit can ask for a large picture, and the machine has other tests to run.
    with worker("--device", "cpu", "--max-pixels", "20000", "--max-cameras", "8") as started:
        yield started


@pytest.fixture(scope="module")
def client(process: WorkerProcess) -> Iterator[RawClient]:
    raw = RawClient(process.target)
    yield raw
    raw.close()


@pytest.fixture(autouse=True)
def unharmed(process: WorkerProcess, client: RawClient) -> Iterator[None]:
    """After each test the worker renders as before, and has found no fault with itself."""
    spec, cloud = spec_of(opencv_camera(32, 32)), sphere_cloud(30)
    before = client.render(spec, cloud=cloud).arrays["color"]
    yield
    assert client.render(spec, cloud=cloud).arrays["color"].tobytes() == before.tobytes()
    assert " ERROR " not in process.log
    assert process.process.poll() is None


@pytest.mark.parametrize(
    "junk",
    [
        b"\x00" * 64,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        PREFACE[:10],
        PREFACE + b"\xff" * 200,
        PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" + b"\xff\xff\xff\x00\x00\x00\x00\x00\x01",
        random.Random(1).randbytes(10_000),
        b"",
    ],
)
def test_junk_on_the_port_is_shrugged_off(process: WorkerProcess, junk: bytes) -> None:
    with socket.create_connection(("127.0.0.1", process.port), timeout=5) as connection:
        connection.sendall(junk)


def test_junk_on_the_metrics_port_is_shrugged_off(process: WorkerProcess) -> None:
    for junk in (b"\xff" * 100, b"BREW /coffee HTCPCP/1.0\r\n\r\n", b""):
        with socket.create_connection(("127.0.0.1", process.metrics_port), timeout=5) as connection:
            connection.sendall(junk)
    assert "lumigrad_calls_total" in process.metrics()


ALL_METHODS = [method for service in SERVICE_NAMES for method in methods(service)]


def send(channel: grpc.Channel, method: Method, requests: list[bytes]) -> grpc.StatusCode:
    """Send raw messages; the status of the call."""
    kinds: dict[tuple[bool, bool], Callable[..., Any]] = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }
    make = kinds[method.client_streaming, method.server_streaming]
    call = make(method.path, lambda raw: raw, lambda raw: raw)
    try:
        result = call(iter(requests) if method.client_streaming else requests[0], timeout=30)
        if method.server_streaming:
            list(result)
    except grpc.RpcError as error:
        assert "Exception" not in error.details()
        assert ".py" not in error.details(), "no path of ours"
        return error.code()
    return Code.OK


@pytest.mark.parametrize("method", ALL_METHODS, ids=lambda method: method.path)
def test_malformed_messages_are_the_callers_fault(client: RawClient, method: Method) -> None:
    rng = random.Random(method.path)
    for length in (1, 2, 3, 5, 10, 30, 100, 300) * 3:
        assert send(client.channel, method, [rng.randbytes(length)]) in CALLERS_FAULT


def test_malformed_bytes_are_named_as_such(client: RawClient) -> None:
    call = client.channel.stream_unary("/lumigrad.v1.SceneService/Put", lambda raw: raw, lambda raw: raw)
    error = failure(lambda: call(iter([b"\xff"]), timeout=10))
    assert violation(error) == ("PutRequest", "expected a well-formed message, got 1 bytes that are not")


def valid_requests(client: RawClient) -> Iterator[tuple[Method, bytes, bytes]]:
    """Method, header and payload of calls that succeed."""
    by_name = {method.name: method for service in SERVICE_NAMES for method in methods(service)}
    for spec, cloud in valid_specs():
        stored = render_pb2.RenderSpec()
        stored.CopyFrom(spec)
        stored.scene_ref.scene_id = client.put(cloud).scene.scene_id
        yield by_name["Render"], render_pb2.RenderRequest(spec=stored, retain=True).SerializeToString(), b""
        payload = PayloadWriter()
        wanted = ["cameras", "opacities"]
        request = render_pb2.BackwardSpec(
            render=with_scene(spec, cloud, payload), wanted=wanted, format={"sparse": True}
        )
        shape = len(spec.cameras), spec.cameras[0].height, spec.cameras[0].width, 3
        request.output_gradients.add(name="color", tensor=payload.add(color_gradient(*shape)))
        header = render_pb2.BackwardRequest(spec=request, payload_bytes=payload.length)
        yield by_name["Backward"], header.SerializeToString(), b"".join(payload.buffers)
    for cloud in (sphere_cloud(30, seed=51), gaussian_cloud(30, seed=51), gaussian_cloud(30, covariances=True)):
        payload = PayloadWriter()
        put = scene_pb2.PutRequest(scene=scene_of(cloud, payload), payload_bytes=payload.length)
        yield by_name["Put"], put.SerializeToString(), b"".join(payload.buffers)


def valid_specs() -> Iterator[tuple[render_pb2.RenderSpec, Arrays]]:
    """What to render of which scene."""
    spheres = {"min_depth": 1.5, "outputs": ["color", "info"], "background": [0, 0, 0]}
    for camera in (opencv_camera(16, 16), pulsar_camera(16, 16)):
        yield spec_of(camera, **spheres), sphere_cloud(30, seed=50)
    fisheye = camera_of(camera_pb2.PROJECTION_FISHEYE, width=16, height=16)
    distorted = camera_of(distortion=(-0.12, 0.05, 0.004, -0.003), width=16, height=16)
    moved = gaussians_pb2.SliceTransform(begin=3, end=9, matrix=np.eye(4).ravel().tolist())
    gaussians: dict[str, Any] = {"outputs": OUTPUTS, "background": [0.1, 0.2, 0.3], "transforms": [moved]}
    yield gaussian_spec(fisheye, distorted, sh_degree=1, **gaussians), gaussian_cloud(30, seed=50)
    exact = {"semantics": gaussians_pb2.GAUSSIAN_SEMANTICS_INRIA_EXACT, "near": 0.2}
    yield gaussian_spec(inria_camera(), **exact), gaussian_cloud(30, coefficients=0, covariances=True)
    yield gaussian_spec(distorted, distorted), gaussian_cloud(2, 15, coefficients=0, views=1)


def test_requests_with_flipped_bits_are_the_callers_fault(client: RawClient) -> None:
    rng = random.Random(7)
    seen = set()
    for method, header, payload in valid_requests(client):
        chunk = FRAME_OF[method.name](data=payload).SerializeToString() if payload else None
        assert send(client.channel, method, [header, *([chunk] if chunk else [])]) == Code.OK
        for _ in range(120):
            changed = bytearray(header)
            for _ in range(rng.choice([1, 1, 1, 2, 5])):
                position = rng.randrange(len(changed))
                changed[position] ^= 1 << rng.randrange(8)
            code = send(client.channel, method, [bytes(changed), *([chunk] if chunk else [])])
            assert code in CALLERS_FAULT, (method.name, bytes(changed))
            seen.add(code)
        for _ in range(40):
            if not payload:
                break
            noise = bytearray(payload)
            for _ in range(5):
                noise[rng.randrange(len(noise))] = rng.randrange(256)
            chunk_of_noise = FRAME_OF[method.name](data=bytes(noise)).SerializeToString()
            assert send(client.channel, method, [header, chunk_of_noise]) in CALLERS_FAULT
    assert {Code.OK, Code.INVALID_ARGUMENT} <= seen


FRAME_OF: dict[str, Any] = {
    "Render": render_pb2.RenderRequest,
    "Backward": render_pb2.BackwardRequest,
    "Put": scene_pb2.PutRequest,
}


def put_frames(client: RawClient, frames: list[Frame[Any]]) -> Any:
    return client.scene_stub.Put(iter(frames), timeout=10)


def header_and_data(count: int = 30) -> tuple[scene_pb2.PutRequest, bytes]:
    payload = PayloadWriter()
    header = scene_pb2.PutRequest(scene=scene_of(sphere_cloud(count, seed=52), payload))
    header.payload_bytes = payload.length
    return header, b"".join(payload.buffers)


def test_streams_that_do_not_start_with_a_header_are_refused(client: RawClient) -> None:
    for frames, got in (([], "nothing"), ([Frame(None, memoryview(b"abc"))], "data")):
        error = failure(lambda frames=frames: put_frames(client, frames))
        assert violation(error) == ("stream", f"expected a header first, got {got}")


def test_too_few_bytes_are_refused(client: RawClient) -> None:
    header, data = header_and_data()
    error = failure(lambda: put_frames(client, [Frame(header), Frame(None, memoryview(data[:-1]))]))
    assert violation(error) == ("data", f"expected payload_bytes = {len(data)} bytes in all, got {len(data) - 1}")


@pytest.mark.parametrize("together", [True, False])
def test_too_many_bytes_are_refused(client: RawClient, together: bool) -> None:
    header, data = header_and_data()
    tail = [data + b"x"] if together else [data, b"x"]
    error = failure(lambda: put_frames(client, [Frame(header), *(Frame(None, memoryview(piece)) for piece in tail)]))
    field, description = violation(error)
    assert (field, description.split(",")[0]) == ("data", f"expected payload_bytes = {len(data)} bytes in all")


@pytest.mark.parametrize("after", [True, False])
def test_a_second_header_is_refused(client: RawClient, after: bool) -> None:
    header, data = header_and_data()
    chunk = Frame(None, memoryview(data))
    frames = [Frame(header), chunk, Frame(header)] if after else [Frame(header), Frame(header), chunk]
    assert violation(failure(lambda: put_frames(client, frames))) == (
        "scene",
        "expected only data after the header, got a second header",
    )


def test_tensors_outside_of_the_payload_are_refused(client: RawClient) -> None:
    header, data = header_and_data()
    header.scene.spheres.radii.payload.offset = len(data) - 4
    error = failure(lambda: put_frames(client, [Frame(header), Frame(None, memoryview(data))]))
    assert violation(error)[0] == "scene.spheres.radii.payload"


def test_a_message_above_grpcs_limit_is_refused_by_it(client: RawClient) -> None:
    header, _ = header_and_data()
    header.payload_bytes = 5 << 20
    error = failure(lambda: put_frames(client, [Frame(header), Frame(None, memoryview(bytes(5 << 20)))]))
    assert error.code() == Code.RESOURCE_EXHAUSTED


def test_large_metadata_is_refused(client: RawClient) -> None:
    call = client.worker_stub.Info
    error = failure(lambda: call(worker_pb2.InfoRequest(), timeout=10, metadata=(("x-large", "y" * 100_000),)))
    assert error.code() in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.INTERNAL)


def test_what_is_echoed_in_errors_is_cut_short(client: RawClient) -> None:
    long = "Ω" * 1_000_000
    error = failure(lambda: client.render(spec_of(outputs=[long]), cloud=sphere_cloud(3)))
    assert violation(error)[1].endswith("Ω… (1000000 characters)")
    for call in (lambda: client.render(spec_of(scene_id=long)), lambda: client.get(scene_id=long)):
        assert failure(call).code() == Code.NOT_FOUND
    error = failure(lambda: client.backward({"color": color_gradient(1, 2, 2, 3)}, context_id=long))
    assert error.code() == Code.FAILED_PRECONDITION
    assert len(detail(error, errors_pb2.ContextLost).context_id) < 300


def test_unknown_methods_are_unimplemented(client: RawClient) -> None:
    call = client.channel.unary_unary("/lumigrad.v1.RenderService/Paint")
    assert failure(lambda: call(b"", timeout=10)).code() == Code.UNIMPLEMENTED


def test_extreme_but_valid_gaussians_render_to_finite_colours(client: RawClient) -> None:
    cloud = gaussian_cloud(30)
    gradient = {"color": color_gradient(1, 16, 16, 3)}
    spec = gaussian_spec(opencv_camera(16, 16))
    for name, value in (("means", 3e38), ("means", 0), ("scales", 1e30), ("scales", 0), ("quats", 0), ("quats", 1e38)):
        wild = {**cloud, name: np.full_like(cloud[name], value)}
        assert not np.isnan(client.render(spec, cloud=wild).arrays["color"]).any(), (name, value)
        for key, array in client.backward(gradient, spec=spec, cloud=wild).arrays.items():
            assert np.isfinite(array).all(), (name, value, key)


def test_extreme_but_valid_scenes_render_to_finite_colours(client: RawClient) -> None:
    cloud = sphere_cloud(30)
    for name, value in (("positions", 3e38), ("positions", 1e-45), ("radii", 1e30), ("colors", 3e38)):
        wild = {**cloud, name: np.full_like(cloud[name], value)}
        color = client.render(spec_of(opencv_camera(16, 16)), cloud=wild).arrays["color"]
        assert not np.isnan(color).any(), (name, value)
