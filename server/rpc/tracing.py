"""Whether calls are traced. Imports OpenTelemetry, whose packages are optional, only if they are."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Protocol

from lumigrad.server.core import logs
from lumigrad.server.core.call import Call
from lumigrad.server.core.config import Config, ConfigError
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.rpc.status import Answer

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_NEEDS = 'needs more packages; install them with: pip install "lumigrad[trace]"'


class Tracer(Protocol):
    """Writes down how calls went."""

    def record(self, call: Call, answer: Answer | None) -> Mapping[str, str]:
        """Write down a call that has just ended, `answer` being None for OK; returns its names for the log."""

    def close(self) -> None:
        """Send what is left, as far as that can be done in a moment."""


class NoTracer:
    """Writes nothing down."""

    def record(self, _: Call, __: Answer | None) -> Mapping[str, str]:
        """Nothing to add to the log."""
        return {}

    def close(self) -> None:
        """Nothing is left."""


def tracer_of(config: Config, device: str, metrics: Metrics) -> Tracer:
    """As the worker was told, by its option or by OpenTelemetry's own environment variables.

    What cannot be done is a ConfigError if the option asked for it; the variables may have been meant for others.
    """
    if not _is_wanted(config):
        return NoTracer()
    try:
        from lumigrad.server.rpc.spans import SpanTracer

        return SpanTracer(config.trace_endpoint, device, metrics)
    except ImportError as error:
        if config.trace_endpoint:
            raise ConfigError(f"--trace-endpoint: {_NEEDS} ({error})") from None
        logs.event(f"traces are disabled: OTEL_EXPORTER_OTLP_ENDPOINT {_NEEDS}", logging.WARNING)
        return NoTracer()


def _is_wanted(config: Config) -> bool:
    told = os.environ
    if told.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if config.trace_endpoint:
        return True
    return told.get("OTEL_TRACES_EXPORTER", "otlp") == "otlp" and any(told.get(name) for name in _ENDPOINTS)
