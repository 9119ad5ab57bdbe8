"""gRPC method tables built from the descriptors, and the callables of a client.

Messages with a payload cross as `wire.Frame`, all others as themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import Descriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from lumigrad.drive.v1 import frame_pb2, sensorsim_pb2
from lumigrad.protos.frame_stream import read_frame_reply
from lumigrad.protos.wire import FrameCodec, is_framed, parse
from lumigrad.v1 import distance_pb2, render_pb2, scene_pb2, training_pb2, worker_pb2

Serializer = Callable[[Any], bytes]
Deserializer = Callable[[bytes], Any]

_SERVICES: Mapping[str, ServiceDescriptor] = {
    service.full_name: service
    for file in (
        render_pb2.DESCRIPTOR,
        distance_pb2.DESCRIPTOR,
        scene_pb2.DESCRIPTOR,
        training_pb2.DESCRIPTOR,
        worker_pb2.DESCRIPTOR,
        sensorsim_pb2.DESCRIPTOR,
        frame_pb2.DESCRIPTOR,
    )
    for service in file.services_by_name.values()
}

RENDER_SERVICE = "lumigrad.v1.RenderService"
DISTANCE_SERVICE = "lumigrad.v1.DistanceService"
SCENE_SERVICE = "lumigrad.v1.SceneService"
TRAINING_SERVICE = "lumigrad.v1.TrainingService"
WORKER_SERVICE = "lumigrad.v1.WorkerService"
# Services of workers that serve driving simulators, which know the first by other names.
SENSORSIM_SERVICE = "lumigrad.drive.v1.SensorsimService"
FRAME_SERVICE = "lumigrad.drive.v1.FrameService"
DRIVE_SERVICES = (SENSORSIM_SERVICE, FRAME_SERVICE)
# Services of all workers.
SERVICE_NAMES = tuple(name for name in _SERVICES if name not in DRIVE_SERVICES)

# Metadata of a call whose reply is one message, which the worker then sends together with the status.
SINGLE_REPLY = ("lumigrad-single-reply", "1")
# The key in a call's metadata for the longest payload that its caller takes in one message; SHORT_BYTES by default.
MESSAGE_BYTES = "lumigrad-message-bytes"


@dataclass(frozen=True)
class Method:
    """One RPC: its path, whether each side streams, and how its messages become bytes."""

    name: str
    path: str
    request: Descriptor
    client_streaming: bool
    server_streaming: bool
    serialize_request: Serializer
    deserialize_request: Deserializer
    serialize_reply: Serializer
    deserialize_reply: Deserializer

    @staticmethod
    def of(descriptor: MethodDescriptor) -> Method:
        """Read everything off the descriptor."""
        serialize_request, deserialize_request = _codec(descriptor.input_type)
        serialize_reply, deserialize_reply = _codec(descriptor.output_type)
        return Method(
            name=descriptor.name,
            path=f"/{descriptor.containing_service.full_name}/{descriptor.name}",
            request=descriptor.input_type,
            client_streaming=descriptor.client_streaming,
            server_streaming=descriptor.server_streaming,
            serialize_request=serialize_request,
            deserialize_request=deserialize_request,
            serialize_reply=serialize_reply,
            deserialize_reply=deserialize_reply,
        )


def methods(service_name: str) -> tuple[Method, ...]:
    """Return the methods of a service, by its full name."""
    return tuple(Method.of(descriptor) for descriptor in _SERVICES[service_name].methods)


class StreamCallable:
    """A method that takes a stream of requests: called with an iterator of them."""

    def __init__(self, stream: Any, single: Callable[..., Any], once: Callable[..., Any]) -> None:
        """`single` sends one request that is the whole stream, which needs no thread to draw requests.

        `once` also takes one reply that is the whole stream: gRPC then wakes its caller once instead of five times. On
        the wire, all are the same.
        """
        self._stream = stream
        self.single = single
        self.once = once

    def __call__(self, requests: Any, **options: Any) -> Any:
        """Call the method."""
        return self._stream(requests, **options)

    def future(self, requests: Any, **options: Any) -> Any:
        """Call the method without waiting, if it returns a single reply."""
        return self._stream.future(requests, **options)


class Stub:
    """The callables of a service on a channel (of grpc or grpc.aio), as attributes named like the methods."""

    def __init__(self, channel: Any, service_name: str) -> None:
        vars(self).update({method.name: _callable(channel, method) for method in methods(service_name)})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Raise AttributeError for an unknown method; a known one is called as `stub.Render(frames, timeout=10)`."""
        raise AttributeError(f"no method {name}; there are {', '.join(vars(self))}")


def _callable(channel: Any, method: Method) -> Callable[..., Any]:
    codec = (method.path, method.serialize_request, method.deserialize_reply)
    once: Callable[..., Any] = channel.unary_unary(*codec)
    single: Callable[..., Any] = channel.unary_stream(*codec) if method.server_streaming else once
    if not method.client_streaming:
        return single
    return StreamCallable(
        (channel.stream_stream if method.server_streaming else channel.stream_unary)(*codec), single, once
    )


def _codec(descriptor: Descriptor) -> tuple[Serializer, Deserializer]:
    message_type: type[Message] = GetMessageClass(descriptor)
    if is_framed(descriptor):
        codec = FrameCodec(message_type)
        return codec.serialize, codec.deserialize
    if message_type is render_pb2.FrameReply:
        return _written, read_frame_reply
    return message_type.SerializeToString, lambda raw: parse(message_type, raw)


def _written(message: Message | bytes) -> bytes:
    """Return the bytes of a message, which may be serialised already."""
    return message if isinstance(message, bytes) else message.SerializeToString()
