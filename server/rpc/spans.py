"""OpenTelemetry spans of calls, and their export. Imported only by workers that trace: the packages are optional."""

from __future__ import annotations

import logging
import os
import platform
import threading
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import version

import grpc
from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from lumigrad.server.core import logs
from lumigrad.server.core.config import ConfigError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.record import CallRecord

_PACKAGE = "lumigrad.v1."
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
# Codes that OpenTelemetry's conventions count as errors of a server.
_FAULTS = {
    "UNKNOWN",
    "DEADLINE_EXCEEDED",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
}
# A collector that does not respond must not delay the exit of the worker.
_CLOSE_SECONDS = 2.0


class SpanTracer:
    """Creates the spans of a call when it has ended; a background thread exports them."""

    def __init__(self, endpoint: str, device: str, metrics: Metrics) -> None:
        """`endpoint` is the collector's URL; if empty, OpenTelemetry's environment variables set it."""
        # Invalid trace headers of callers would fill the log with warnings.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        exporter = _WatchedExporter(_exporter(endpoint), metrics)
        self._provider = TracerProvider(resource=_resource(device), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("lumigrad.server", version("lumigrad"))
        self._propagator = TraceContextTextMapPropagator()

    def record(self, record: CallRecord) -> Mapping[str, str]:
        """Record a call as a child of the caller's span, if it has one, with that span's sampling decision."""
        if record.code == grpc.StatusCode.UNAUTHENTICATED.name:
            # Callers that are not authenticated must not create spans.
            return {}
        method = _PACKAGE + record.method.replace(".", "/")
        span = self._tracer.start_span(
            method,
            context=self._propagator.extract(record.trace_parent),
            kind=trace.SpanKind.SERVER,
            attributes=_attributes(record, method),
            start_time=record.epoch_ns(record.times.created),
        )
        context = span.get_span_context()
        if span.is_recording():
            below = trace.set_span_in_context(span)
            for stage, started, ended in record.times.spans or ():
                child = self._tracer.start_span(stage, context=below, start_time=record.epoch_ns(started))
                child.end(record.epoch_ns(ended))
            if record.code in _FAULTS:
                span.set_status(trace.StatusCode.ERROR)
            span.end(record.epoch_ns(record.times.ended))
        if not context.is_valid:
            return {}
        return {"trace_id": trace.format_trace_id(context.trace_id), "span_id": trace.format_span_id(context.span_id)}

    def close(self) -> None:
        """Export the remaining spans; those that a slow collector does not accept in time are lost."""
        sending = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        sending.start()
        sending.join(_CLOSE_SECONDS)


class _WatchedExporter(SpanExporter):
    """Counts the spans that are sent and lost, and logs when sending begins to fail and when it succeeds again.

    OpenTelemetry logs the reason.
    """

    def __init__(self, exporter: SpanExporter, metrics: Metrics) -> None:
        self._exporter = exporter
        self._metrics = metrics
        self._works = True
        self.shutdown = exporter.shutdown  # type: ignore[method-assign]

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; those that cannot be sent are lost."""
        result = self._exporter.export(spans)
        works = result is SpanExportResult.SUCCESS
        self._metrics.spans.labels("exported" if works else "lost").inc(len(spans))
        if works != self._works:
            self._works = works
            text = "traces are exported again" if works else "traces cannot be exported; calls are not affected"
            logs.event(text, logging.WARNING)
        return result


def _exporter(endpoint: str) -> SpanExporter:
    """Return an exporter; OpenTelemetry's environment variables set its other options, and an empty endpoint."""
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter(endpoint or None)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http

        return by_http.OTLPSpanExporter(f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)
    raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL: expected grpc or http/protobuf, got {protocol}")


def _attributes(record: CallRecord, method: str) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "rpc.system.name": "grpc",
        "rpc.method": method,
        "rpc.response.status_code": record.code,
        "lumigrad.request_id": record.request_id,
        "lumigrad.received_bytes": record.bytes_received,
        "lumigrad.sent_bytes": record.bytes_sent,
        **{f"lumigrad.{name}": value for name, value in record.facts.items()},
    }
    named = {"engine": record.engine, "operation": record.operation, "tenant": record.tenant}
    attributes.update({f"lumigrad.{name}": value for name, value in named.items() if value})
    if record.code != grpc.StatusCode.OK.name:
        # Not the text of the error, which may quote the request.
        attributes["error.type"] = record.code
        attributes["lumigrad.reason"] = record.reason
    return attributes


def _resource(device: str) -> Resource:
    resource = Resource.create(
        {
            "service.version": version("lumigrad"),
            "service.instance.id": str(uuid.uuid4()),
            "host.name": platform.node(),
            "process.pid": os.getpid(),
            "lumigrad.device": device,
        }
    )
    is_named = not str(resource.attributes.get("service.name", "")).startswith("unknown_service")
    return resource if is_named else resource.merge(Resource({"service.name": "lumigrad"}))
