"""The worker's log on standard error: one line per event, plain or JSON."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import datetime, timezone

logger = logging.getLogger("lumigrad")


def configure(log_format: str) -> None:
    """Send the log to standard error as "plain" or "json" lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _PlainFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False


def event(message: str, /, level: int = logging.INFO, *, error: BaseException | None = None, **fields: object) -> None:
    """Log a message with fields; `error` adds its traceback, which stays on this side of the network."""
    logger.log(level, message, exc_info=error, extra={"fields": fields})


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = [_time(record), record.levelname, record.getMessage()]
        words += [f"{name}={_plain(value)}" for name, value in _fields(record).items()]
        line = " ".join(words)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        entry = {"time": _time(record), "level": record.levelname, "message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _plain(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return json.dumps(text) if " " in text or not text.isprintable() else text
