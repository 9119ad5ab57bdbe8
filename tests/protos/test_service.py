"""The method tables, and stock protobuf stubs of any language that use them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from lumigrad.protos.service import (
    DISTANCE_SERVICE,
    RENDER_SERVICE,
    SCENE_SERVICE,
    SERVICE_NAMES,
    TRAINING_SERVICE,
    WORKER_SERVICE,
    Stub,
    methods,
)
from lumigrad.protos.wire import Frame
from lumigrad.v1 import render_pb2, worker_pb2
from support.calls.handlers import handlers_of

RENDER = "/lumigrad.v1.RenderService/Render"


def test_every_service_of_the_contract_is_in_the_table() -> None:
    expected = [RENDER_SERVICE, DISTANCE_SERVICE, SCENE_SERVICE, TRAINING_SERVICE, WORKER_SERVICE]
    assert sorted(SERVICE_NAMES) == sorted(expected)
    table = {method.path: (method.client_streaming, method.server_streaming) for method in methods(SCENE_SERVICE)}
    assert table == {
        "/lumigrad.v1.SceneService/Put": (True, False),
        "/lumigrad.v1.SceneService/Update": (True, False),
        "/lumigrad.v1.SceneService/Get": (False, True),
        "/lumigrad.v1.SceneService/List": (False, False),
        "/lumigrad.v1.SceneService/Delete": (False, False),
    }


def echo(frames: Iterator[Any], _: grpc.ServicerContext) -> Iterator[Frame[render_pb2.RenderReply]]:
    for frame in frames:
        message = None if frame.message is None else render_pb2.RenderReply(payload_bytes=frame.message.payload_bytes)
        yield Frame(message, frame.data)


@pytest.fixture(scope="module")
def channel() -> Iterator[grpc.Channel]:
    server = grpc.server(ThreadPoolExecutor(2))
    render = SimpleNamespace(
        Render=echo,
        RenderBatch=echo,
        RenderStream=echo,
        Backward=echo,
        Release=lambda request, _: render_pb2.ReleaseReply(),
    )
    info = SimpleNamespace(
        Info=lambda request, _: worker_pb2.InfoReply(device=type(request).__name__),
        OpenLane=lambda request, _: worker_pb2.OpenLaneReply(socket=type(request).__name__),
    )
    server.add_generic_rpc_handlers((handlers_of(RENDER_SERVICE, render), handlers_of(WORKER_SERVICE, info)))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with grpc.insecure_channel(f"127.0.0.1:{port}") as opened:
        yield opened
    server.stop(None).wait()


def test_frames_cross_a_real_connection(channel: grpc.Channel) -> None:
    sent = [
        Frame(render_pb2.RenderRequest(payload_bytes=5)),
        Frame(None, memoryview(b"ab")),
        Frame(None, memoryview(b"cde")),
    ]
    replies = list(Stub(channel, RENDER_SERVICE).Render(iter(sent), timeout=60))
    assert replies[0].message == render_pb2.RenderReply(payload_bytes=5)
    assert [(reply.message, bytes(reply.data)) for reply in replies[1:]] == [(None, b"ab"), (None, b"cde")]


def test_one_request_may_be_the_whole_stream(channel: grpc.Channel) -> None:
    call = Stub(channel, RENDER_SERVICE).Render
    frame = Frame(render_pb2.RenderRequest(payload_bytes=3), memoryview(b"abc"))
    replies = list(call.single(frame, timeout=60))
    assert [(reply.message, bytes(reply.data)) for reply in replies] == [
        (render_pb2.RenderReply(payload_bytes=3), b"abc")
    ]


def test_a_stock_protobuf_client_understands_the_hand_codec(channel: grpc.Channel) -> None:
    call = channel.stream_stream(RENDER, render_pb2.RenderRequest.SerializeToString, render_pb2.RenderReply.FromString)
    sent = [render_pb2.RenderRequest(payload_bytes=3, data=b"a"), render_pb2.RenderRequest(data=b"bc")]
    assert list(call(iter(sent), timeout=60)) == [
        render_pb2.RenderReply(payload_bytes=3, data=b"a"),
        render_pb2.RenderReply(data=b"bc"),
    ]


def test_messages_without_a_payload_cross_as_themselves(channel: grpc.Channel) -> None:
    stub = Stub(channel, WORKER_SERVICE)
    assert stub.Info(worker_pb2.InfoRequest(), timeout=60).device == "InfoRequest"
    with pytest.raises(AttributeError, match="no method Inform; there are Info, OpenLane"):
        _ = stub.Inform
