"""The choice of a tracer. Imports OpenTelemetry, whose packages are optional, only if calls are traced."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from lumigrad.server.core import logs
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.metrics import Metrics

if TYPE_CHECKING:
    from lumigrad.server.rpc.spans import SpanTracer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDS = 'needs more packages; install them with: pip install "lumigrad[trace]"'


def tracer_of(config: Config, device: str, metrics: Metrics) -> SpanTracer | None:
    """Return the tracer that --trace-endpoint or OpenTelemetry's environment variables select, or None.

    If packages are missing, the option raises a ConfigError; the variables, which other programs use too, only log.
    """
    if not _is_enabled(config):
        return None
    try:
        from lumigrad.server.rpc.spans import SpanTracer

        return SpanTracer(config.trace_endpoint, device, metrics)
    except ImportError as error:
        if config.trace_endpoint:
            raise ConfigError(f"--trace-endpoint: {_NEEDS} ({error})") from None
        logs.event(f"traces are disabled: OTEL_EXPORTER_OTLP_ENDPOINT {_NEEDS}", logging.WARNING)
        return None


def _is_enabled(config: Config) -> bool:
    environment = os.environ
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if config.trace_endpoint:
        return True
    return environment.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp" and any(
        environment.get(name) for name in _ENDPOINTS
    )
