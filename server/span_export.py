"""How spans leave the worker: by OTLP, in the background, whatever becomes of them."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from lumigrad.server import logs
from lumigrad.server.config import ConfigError
from lumigrad.server.metrics import Metrics

_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_HTTP_PATH = "/v1/traces"


def exporter_of(endpoint: str) -> SpanExporter:
    """Sends spans to an endpoint; empty: where OpenTelemetry's environment variables say. By gRPC unless they say HTTP.

    All else, such as headers, certificates and time-outs, is for the variables too.
    """
    protocol = next((os.environ[name] for name in _PROTOCOLS if os.environ.get(name)), "grpc")
    if protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc import trace_exporter as by_grpc

        return by_grpc.OTLPSpanExporter(endpoint or None)
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http import trace_exporter as by_http

        return by_http.OTLPSpanExporter(endpoint.rstrip("/") + _HTTP_PATH if endpoint else None)
    raise ConfigError(f"OTEL_EXPORTER_OTLP_PROTOCOL: expected grpc or http/protobuf, got {protocol}")


class WatchedExporter(SpanExporter):
    """Counts what gets through, and says once when nothing does any more, and once when it does again."""

    def __init__(self, exporter: SpanExporter, metrics: Metrics) -> None:
        self._exporter = exporter
        self._metrics = metrics
        self._works = True
        self._complaints = _Complaints()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send spans; those that cannot be sent are lost."""
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            self._complaints.newest = type(error).__name__
            result = SpanExportResult.FAILURE
        works = result is SpanExportResult.SUCCESS
        self._metrics.spans.labels("exported" if works else "lost").inc(len(spans))
        if works != self._works:
            self._works = works
            if works:
                logs.event("traces are exported again", logging.WARNING)
            else:
                logs.event("traces cannot be exported; calls go on", logging.WARNING, why=self._complaints.newest)
        return result

    def shutdown(self) -> None:
        """Give up what is being sent."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing is kept here."""
        return True


class _Complaints(logging.Handler):
    """Keeps the newest of what OpenTelemetry would write to standard error, again and again."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.newest = ""
        logger = logging.getLogger("opentelemetry")
        logger.handlers[:] = [self]
        logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.newest = record.getMessage()
