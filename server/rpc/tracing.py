"""The choice of a tracer. Imports OpenTelemetry, whose packages are optional, only if calls are traced."""

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
    """Records calls as traces."""

    def record(self, call: Call, answer: Answer | None) -> Mapping[str, str]:
        """Record a call that has just ended, with `answer` None for OK; returns trace ids for the log."""

    def close(self) -> None:
        """Export what is left, within a short time."""


class NoTracer:
    """Records nothing."""

    def record(self, _: Call, __: Answer | None) -> Mapping[str, str]:
        """No ids for the log."""
        return {}

    def close(self) -> None:
        """Does nothing."""


def tracer_of(config: Config, device: str, metrics: Metrics) -> Tracer:
    """The tracer that --trace-endpoint or OpenTelemetry's environment variables select.

    If packages are missing, the option raises a ConfigError; the variables, which other programs use too, only log.
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
