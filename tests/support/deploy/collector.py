"""An OpenTelemetry collector that receives the spans of real processes by gRPC and by HTTP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True)
class ReceivedSpan:
    """One span as it was exported, ids in hexadecimal digits, times in nanoseconds since 1970."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    status: int
    attributes: dict[str, Any]
    resource: dict[str, Any]
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)

    @property
    def ms(self) -> float:
        return (self.end_ns - self.start_ns) / 1e6


class Collector:
    """Stores received spans; does not answer while `answers` is cleared."""

    def __init__(self) -> None:
        self.raw: list[bytes] = []
        self.spans: list[ReceivedSpan] = []
        self.answers = threading.Event()
        self.answers.set()
        self.headers: list[dict[str, str]] = []
        self._changed = threading.Condition()

    def take(self, raw: bytes) -> None:
        self.answers.wait(120)
        request = trace_service_pb2.ExportTraceServiceRequest.FromString(raw)
        with self._changed:
            self.raw.append(raw)
            for resource_spans in request.resource_spans:
                resource = _values(resource_spans.resource.attributes)
                for scope in resource_spans.scope_spans:
                    self.spans += [_received(span, resource) for span in scope.spans]
            self._changed.notify_all()

    def wait_for(self, name: str, count: int = 1, trace_id: str = "", **attributes: Any) -> list[ReceivedSpan]:
        """Wait for `count` spans with this name, trace and attributes; returns them, the oldest first.

        `lumigrad__engine` stands for the attribute `lumigrad.engine`.
        """
        wanted = {key.replace("__", "."): value for key, value in attributes.items()}.items()

        def found() -> list[ReceivedSpan]:
            named = [span for span in self.spans if span.name == name and trace_id in ("", span.trace_id)]
            fitting = sorted((span for span in named if wanted <= span.attributes.items()), key=_start)
            return fitting if len(fitting) >= count else []

        with self._changed:
            assert self._changed.wait_for(found, 120), f"no {name} {trace_id} {attributes} among {self.spans}"
            return found()

    def children(self, span: ReceivedSpan) -> list[ReceivedSpan]:
        found = [other for other in self.spans if other.parent_id == span.span_id]
        return sorted(found, key=_start)


@contextmanager
def grpc_collector(port: int = 0) -> Iterator[tuple[Collector, str]]:
    """A collector and its URL."""
    collector = Collector()

    class Service(trace_service_pb2_grpc.TraceServiceServicer):
        def Export(self, request: Any, context: grpc.ServicerContext) -> Any:
            collector.headers.append({key: str(value) for key, value in context.invocation_metadata()})
            collector.take(request.SerializeToString())
            return trace_service_pb2.ExportTraceServiceResponse()

    server = grpc.server(ThreadPoolExecutor(4), options=(("grpc.so_reuseport", 0),))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(Service(), server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{bound}"
    finally:
        collector.answers.set()
        server.stop(None).wait()


@contextmanager
def http_collector() -> Iterator[tuple[Collector, str]]:
    """An HTTP collector and its URL."""
    collector = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/traces"
            collector.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _start(span: ReceivedSpan) -> int:
    return span.start_ns


def _received(span: trace_pb2.Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status=span.status.code,
        attributes=_values(span.attributes),
        resource=resource,
        events=[(event.name, _values(event.attributes)) for event in span.events],
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value") or "string_value") for entry in attributes}
