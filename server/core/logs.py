"""The worker's log on standard error: one line per event, plain or JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Mapping
from datetime import datetime, timezone
from types import TracebackType

logger = logging.getLogger("lumigrad")


def configure(log_format: str) -> None:
    """Write the log to standard error as "plain" or "json" lines, warnings and uncaught errors included."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _PlainFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
    others = logging.getLogger()
    others.handlers[:] = [handler]
    others.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _thread_ended
    sys.excepthook = _process_ended


def event(message: str, /, level: int = logging.INFO, *, error: BaseException | None = None, **fields: object) -> None:
    """Log a message with fields; `error` adds its traceback, which callers never see."""
    if logger.isEnabledFor(level):
        why = None if error is None else (type(error), error, error.__traceback__)
        # `Logger.log` would spend time on finding the calling line.
        record = logging.LogRecord(logger.name, level, "", 0, message, None, why)
        record.fields = fields
        logger.handle(record)


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    name = None if ended.thread is None else ended.thread.name
    event("a thread ended", logging.ERROR, error=ended.exc_value, thread=name)


def _process_ended(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    event("the process ended", logging.CRITICAL, error=error)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields if record.name == logger.name else {**fields, "logger": record.name}


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")


class _PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        words = [_time(record), record.levelname, text if text.isprintable() else json.dumps(text)]
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
