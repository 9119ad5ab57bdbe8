"""The methods of services as gRPC calls them, from the bytes of requests to the bytes of replies."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection, reflection_pb2

from lumigrad.kernels._native import ShortCall
from lumigrad.protos.chunks import LARGEST_MESSAGE_BYTES, SHORT_BYTES
from lumigrad.protos.service import SERVICE_NAMES, SINGLE_REPLY, Method, methods
from lumigrad.protos.wire import Frame, parse
from lumigrad.server.core.call import Call
from lumigrad.server.core.streams import first_reply, messages, next_message, only
from lumigrad.server.rpc.authentication import Authentication
from lumigrad.server.rpc.handler import CallHandler
from lumigrad.server.rpc.request_check import RequestCheck
from lumigrad.server.rpc.status import Answer

# Answers a call: takes the bytes of its first message, and returns those of its reply. None if it cannot.
Early = Callable[[bytes, ShortCall], bytes | None]
# Answers a call of the general path in the same way; the number limits the payload of the reply in bytes.
Whole = Callable[[bytes, Call, int], bytes | None]

# A method as gRPC calls it; and a function that continues with a call's requests after an `Early` did not answer it, or
# failed with an error.
Single = Callable[[Iterator[bytes], grpc.ServicerContext], bytes]
GoOn = Callable[[ShortCall, Iterator[bytes], BaseException | None], bytes]


class Shortcut(Protocol):
    """Answers similar calls of a method. If it is also a `Whole`, it answers calls with a stream of replies, too.

    Attributes:
        takes_lanes: Whether `answer` accepts calls that name a lane.
    """

    takes_lanes: bool

    def answer(self, raw: bytes, short: ShortCall) -> bytes | None:
        """Answer a call as an `Early`, and note the request that was read for the general path."""


class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]
    """The handlers of methods by path; `singles` are for calls with SINGLE_REPLY in their metadata."""

    def __init__(
        self, streams: Mapping[str, grpc.RpcMethodHandler], singles: Mapping[str, grpc.RpcMethodHandler]
    ) -> None:
        self._streams = streams
        self._singles = singles

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a call; None if there is no such method."""
        is_single = SINGLE_REPLY in (details.invocation_metadata or ())
        return (self._singles if is_single else self._streams).get(details.method)


class Methods:
    """Makes the handlers of services; the methods of their servicers take `(request, call)`."""

    def __init__(self, handler: CallHandler, request_check: RequestCheck) -> None:
        """`handler` admits and releases calls; `request_check` refuses requests whose fields exceed a bound."""
        self._handler = handler
        self._request_check = request_check

    def serve(
        self,
        service_name: str,
        servicer: object,
        *,
        names: Sequence[str] = (),
        translate: Callable[[Answer], Answer] = lambda answer: answer,
        own: Mapping[str, grpc.RpcMethodHandler] = MappingProxyType({}),
    ) -> grpc.GenericRpcHandler:
        """Return handlers that call the methods of `servicer` with `(request, call)` or `(requests, call)`.

        Methods in `own` have handlers of their own.

        Callers may know the service by other full `names`, and expect other statuses, which `translate` makes from
        ours.

        gRPC calls the handlers before a request has arrived, because it would itself wait for one without limit and for
        any caller. It leaves requests as bytes, because it would parse all of them in one thread that every call needs.
        """
        short = service_name.rpartition(".")[2]
        streams: dict[str, grpc.RpcMethodHandler] = {}
        singles: dict[str, grpc.RpcMethodHandler] = {}
        for method in methods(service_name):
            if method.name in own:
                path = f"/{service_name}/{method.name}"
                streams[path] = singles[path] = own[method.name]
                continue
            name, behave = f"{short}.{method.name}", _behavior(method, getattr(servicer, method.name))
            read, write = self._reader(method), _writer(method)
            shortcut = getattr(servicer, "shortcuts", {}).get(method.name)
            single = grpc.stream_unary_rpc_method_handler(
                self._wrap_single(name, method, behave, read, write, translate, shortcut)
            )
            stream = single
            if method.server_streaming:
                wrapped = self._wrap_stream(name, behave, read, shortcut if callable(shortcut) else None)
                stream = grpc.stream_stream_rpc_method_handler(wrapped, None, write)
            for full_name in names or (service_name,):
                path = f"/{full_name}/{method.name}"
                streams[path], singles[path] = stream, single
        return Handlers(streams, singles)

    def _reader(self, method: Method) -> Callable[[bytes, Call], Any]:
        def read(raw: bytes, call: Call) -> Any:
            self._request_check.check(method.request, raw, lambda: call.turn.take(call.check))
            return method.deserialize_request(raw)

        return read

    def _wrap_single(
        self,
        name: str,
        method: Method,
        behavior: Callable[[Iterator[Any], Call], Any],
        read: Callable[[bytes, Call], Any],
        write: Callable[[Any], bytes],
        translate: Callable[[Answer], Answer],
        shortcut: Shortcut | None,
    ) -> Single:
        """Return a method that parses a stream of requests by `read`, and returns one reply, serialised by `write`.

        gRPC would serialise the reply only after the call has been recorded.
        """
        handler = self._handler

        def answer(requests: Iterator[bytes], call: Call) -> bytes:
            call.has_single_reply = True
            reply = behavior(messages(requests, read, call), call)
            return write(first_reply(reply, call) if method.server_streaming else reply)

        def single(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
            with handler.guarded(name, context, translate) as call:
                return answer(requests, call)

        def go_on(short: ShortCall, requests: Iterator[bytes], error: BaseException | None) -> bytes:
            with handler.continued(short, translate) as call:
                if error is None:
                    return answer(requests, call)
                try:
                    raise error
                finally:
                    # The error's traceback refers to this frame. This cycle would keep what the call held.
                    del error

        # Only the general path traces calls.
        if shortcut is None or handler.is_traced:
            return single
        admit = partial(handler.shorts.admit, name, takes_lanes=shortcut.takes_lanes)
        return _short_entry(admit, handler.authentication, shortcut.answer, single, go_on)

    def _wrap_stream(
        self,
        name: str,
        behavior: Callable[[Any, Call], Iterator[Any]],
        read: Callable[[bytes, Call], Any],
        shortcut: Whole | None = None,
    ) -> Callable[..., Any]:
        """Return a method that parses a stream of requests by `read`, and returns a stream of replies."""
        handler = self._handler

        def stream(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[Any]:
            with handler.guarded(name, context) as call:
                # The caller of a stream may need the id before the end; with a single reply, both arrive together.
                handler.announce(call)
                sending = call.progress.sending
                whole, requests = _shortened(requests, call, shortcut)
                if whole is not None:
                    with sending:
                        yield whole
                    return
                for reply in behavior(messages(requests, read, call), call):
                    call.turn.give()
                    with sending:
                        yield reply
                    nbytes = reply.data.nbytes if isinstance(reply, Frame) else 0
                    call.record.bytes_sent += nbytes
                    sending.restart() if nbytes == 0 else sending.moved(nbytes)

        return stream

    def reflection(self) -> grpc.GenericRpcHandler:
        """Return gRPC's reflection service, with the same authentication and limits as all calls."""
        names = (*SERVICE_NAMES, health.SERVICE_NAME, reflection.SERVICE_NAME)
        behavior = self._wrap_stream(
            "ServerReflection.ServerReflectionInfo",
            reflection.ReflectionServicer(names).ServerReflectionInfo,
            lambda raw, _: parse(reflection_pb2.ServerReflectionRequest, raw),
        )
        write = reflection_pb2.ServerReflectionResponse.SerializeToString
        handlers = {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(behavior, None, write)}
        return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, handlers)


def _behavior(method: Method, behavior: Callable[[Any, Call], Any]) -> Callable[[Iterator[Any], Call], Any]:
    return behavior if method.client_streaming else lambda requests, call: behavior(only(requests, call), call)


def _shortened(requests: Iterator[bytes], call: Call, shortcut: Whole | None) -> tuple[bytes | None, Iterator[bytes]]:
    """Return the shortcut's reply, or None, and the requests that are left: all of them if there is no reply."""
    first = None if shortcut is None else next_message(requests, call)
    if shortcut is None or first is None:
        return None, requests
    call.progress.has_begun = True
    reply = shortcut(first, call, call.message_bytes)
    # The general path refuses a second message.
    more = None if reply is None else next_message(requests, call)
    if reply is None or more is not None:
        return None, itertools.chain((first,), () if more is None else (more,), requests)
    return reply, requests


def _writer(method: Method) -> Callable[[Any], bytes]:
    """Return a function that serialises replies, except for those that shortcuts have already written as bytes."""
    return lambda reply: reply if isinstance(reply, bytes) else method.serialize_reply(reply)


def _short_entry(
    admit: Callable[..., ShortCall | None],
    authentication: Authentication | None,
    early: Early,
    general: Single,
    go_on: GoOn,
) -> Single:
    """Return a method whose calls `early` may answer; `general` takes calls that are not admitted, and refuses them."""

    def short(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            tenant = "" if authentication is None else authentication.tenant_of(context)
        except Exception:
            return general(requests, context)
        opened = admit(tenant, context, SHORT_BYTES, LARGEST_MESSAGE_BYTES)
        if opened is None:
            return general(requests, context)
        error = None
        raw = opened.receive(requests)
        if raw is not None:
            try:
                reply = early(raw, opened)
                if reply is not None:
                    return reply
            except Exception as failed:
                error = failed
            requests = itertools.chain((raw,), requests)
        try:
            return go_on(opened, requests, error)
        finally:
            # The error's traceback refers to this frame. This cycle would keep what the call held.
            del error

    return short
