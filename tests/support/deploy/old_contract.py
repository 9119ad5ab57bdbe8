"""A proxy that restricts a current worker to the methods and fields of an earlier protocol."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message

_HANDLERS: dict[tuple[bool, bool], Callable[..., Any]] = {
    (False, False): grpc.unary_unary_rpc_method_handler,
    (False, True): grpc.unary_stream_rpc_method_handler,
    (True, False): grpc.stream_unary_rpc_method_handler,
    (True, True): grpc.stream_stream_rpc_method_handler,
}


def services_of(protos: Path) -> list[Any]:
    """The descriptors of the services in a folder of .proto files."""
    files = sorted(str(path.relative_to(protos)) for path in protos.rglob("*.proto"))
    out = protos / "descriptors"
    command = [sys.executable, "-m", "grpc_tools.protoc", "-I", str(protos), "--include_imports"]
    subprocess.run([*command, f"--descriptor_set_out={out}", *files], check=True, capture_output=True, timeout=250)
    pool = descriptor_pool.DescriptorPool()
    described = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    for file in described.file:
        pool.Add(file)  # type: ignore[attr-defined]
    return [
        pool.FindServiceByName(f"{file.package}.{service.name}") for file in described.file for service in file.service
    ]


def _forgetful(kind: type[Message]) -> Callable[[bytes], bytes]:
    """A function that decodes and encodes a message, and drops the fields that its descriptor does not have."""

    def convert(data: bytes) -> bytes:
        message = kind.FromString(data)
        message.DiscardUnknownFields()
        return message.SerializeToString()

    return convert


def _handler(method: Any, channel: grpc.Channel) -> grpc.RpcMethodHandler:
    path = f"/{method.containing_service.full_name}/{method.name}"
    request, reply = (
        _forgetful(message_factory.GetMessageClass(kind)) for kind in (method.input_type, method.output_type)
    )
    streams = (method.client_streaming, method.server_streaming)
    names = {False: "unary", True: "stream"}
    call = getattr(channel, f"{names[streams[0]]}_{names[streams[1]]}")(path)

    def behave(received: Any, context: grpc.ServicerContext) -> Any:
        metadata = tuple(pair for pair in context.invocation_metadata() if pair[0].startswith("lumigrad-"))
        asked = map(request, received) if streams[0] else request(received)
        try:
            if not streams[1]:
                return reply(call(asked, metadata=metadata, timeout=60))
            return _stream(call(asked, metadata=metadata, timeout=60), reply, context)
        except grpc.RpcError as error:
            _abort(error, context)

    return _HANDLERS[streams](behave)


def _stream(replies: Any, reply: Callable[[bytes], bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
    try:
        yield from map(reply, replies)
    except grpc.RpcError as error:
        _abort(error, context)


def _abort(error: Any, context: grpc.ServicerContext) -> None:
    details = [pair for pair in error.trailing_metadata() or () if pair[0] == "grpc-status-details-bin"]
    context.set_trailing_metadata(details)
    context.abort(error.code(), error.details())


@contextmanager
def old_worker(protos: Path, target: str) -> Iterator[str]:
    """The address of a proxy for the worker at `target`, restricted to the contract in a folder of .proto files."""
    with grpc.insecure_channel(target) as channel:
        server = grpc.server(futures.ThreadPoolExecutor(16))
        for service in services_of(protos):
            handlers = {method.name: _handler(method, channel) for method in service.methods}
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service.full_name, handlers),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"127.0.0.1:{port}"
        finally:
            server.stop(None).wait()
