"""gRPC's reflection: a call like every other, with its token, its place and its limits of time."""

from __future__ import annotations

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from lumigrad.protos.service import SERVICE_NAMES
from lumigrad.protos.wire import parse
from lumigrad.server.surface import Surface

_NAMES = (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME)


def reflection_handler(surface: Surface) -> grpc.GenericRpcHandler:
    """Tells callers which services there are."""
    behavior = surface.wrap_stream(
        "ServerReflection.ServerReflectionInfo",
        reflection.ReflectionServicer(_NAMES).ServerReflectionInfo,
        lambda raw: parse(reflection_pb2.ServerReflectionRequest, raw),
    )
    write = reflection_pb2.ServerReflectionResponse.SerializeToString
    handlers = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(behavior, None, write)}
    return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, handlers)
