"""A service of the contract on a plain gRPC server, for tests that script what a worker answers."""

from __future__ import annotations

from typing import Any

import grpc

from lumigrad.protos.service import Method, methods


def handlers_of(service_name: str, servicer: Any) -> grpc.GenericRpcHandler:
    """Serves the methods of `servicer`, named as in the contract and called as `method(request, context)`."""
    handlers = {method.name: _handler(method, getattr(servicer, method.name)) for method in methods(service_name)}
    return grpc.method_handlers_generic_handler(service_name, handlers)


def _handler(method: Method, behavior: Any) -> grpc.RpcMethodHandler:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[method.client_streaming, method.server_streaming]
    return make(behavior, method.deserialize_request, method.serialize_reply)
