"""The worker's log on standard error: one line per event, plain or JSON."""

from __future__ import annotations

import json
import logging
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import datetime, timezone
from select import PIPE_BUF
from types import TracebackType
from typing import Any, TextIO

from lumigrad.kernels._native import RecordBatch

logger = logging.getLogger("lumigrad")


# Milliseconds from which a successful call is logged where shorter ones are not.
_SLOW_MS = 1000.0


def least_ms(level: str) -> float:
    """Return the duration in milliseconds from which successful calls are logged, at a level of `--log-level`."""
    return 0.0 if level == "calls" or (level == "auto" and not sys.stderr.isatty()) else _SLOW_MS


def configure(log_format: str, level: str = "auto") -> None:
    """Write the log to standard error as "plain" or "json" lines, warnings and uncaught errors included."""
    handler = _LineHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if log_format == "json" else _PlainFormatter())
    logger.handlers[:] = [handler]
    logger.setLevel({"warning": logging.WARNING, "error": logging.ERROR}.get(level, logging.INFO))
    logger.propagate = False
    others = logging.getLogger()
    others.handlers[:] = [handler]
    others.setLevel(logging.ERROR if level == "error" else logging.WARNING)
    logging.captureWarnings(True)
    threading.excepthook = _thread_ended
    sys.excepthook = _process_ended


def event(
    message: str,
    /,
    level: int = logging.INFO,
    *,
    error: BaseException | None = None,
    moment: float | None = None,
    **fields: object,
) -> None:
    """Log a message with fields.

    `error` adds its traceback, which callers never see; `moment` is when it happened, in seconds since 1970, if that
    was not now.
    """
    if logger.isEnabledFor(level):
        why = None if error is None else (type(error), error, error.__traceback__)
        # `Logger.log` would spend time on finding the calling line.
        record = logging.LogRecord(logger.name, level, "", 0, message, None, why)
        record.fields = fields
        if moment is not None:
            record.created = moment
        logger.handle(record)


@contextmanager
def together() -> Iterator[Batch]:
    """Write the lines of a `with` block together at its end; lines of other threads wait for it.

    A line takes a fraction of the time of `event`.
    """
    with ExitStack() as stack:
        handlers = [handler for handler in logger.handlers if isinstance(handler, _LineHandler)]
        for handler in handlers:
            stack.enter_context(handler.together())
        is_ours = len(handlers) == 1 == len(logger.handlers) and logger.isEnabledFor(logging.INFO)
        yield handlers[0] if is_ours else _Events()


class _Events:
    """A batch for any other handlers."""

    def add(self, message: str, moment: float, fields: Mapping[str, Any]) -> None:
        """Add a message with the time at which it happened, and fields."""
        event(message, moment=moment, **fields)

    def add_calls(self, calls: RecordBatch, least_ms: float) -> None:
        """Add calls that ran without Python, if they took at least `least_ms`."""
        for moment, fields in _long(calls, least_ms):
            event("call", moment=moment, **fields)


def _long(calls: RecordBatch, least_ms: float) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield the time of the end, and the fields, of each call that took at least `least_ms`."""
    for request_id, method, tenant, milliseconds, moment, received, sent in calls.tuples():
        if milliseconds >= least_ms:
            fields = {"request_id": request_id, "method": method, "code": "OK", "ms": round(milliseconds, 3)}
            yield moment, {**fields, "received": received, "sent": sent, **({"tenant": tenant} if tenant else {})}


class _LineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes each line at once, or the lines of a batch together."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__(stream)
        # Lines of the batch; None without a batch.
        self._waiting: list[str] | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or add it to the batch."""
        if self._waiting is None:
            super().emit(record)
        else:
            self._waiting.append(self.format(record) + self.terminator)

    def add(self, message: str, moment: float, fields: Mapping[str, object]) -> None:
        """Add a line to the batch."""
        waiting, formatter = self._batch
        waiting.append(formatter.line(moment, "INFO", message, fields) + self.terminator)

    def add_calls(self, calls: RecordBatch, least_ms: float) -> None:
        """Add lines of calls that ran without Python; native code formats them if `least_ms` is 0."""
        waiting, formatter = self._batch
        if least_ms:
            for moment, fields in _long(calls, least_ms):
                self.add("call", moment, fields)
            return
        waiting += calls.blocks(is_json=formatter.is_json, most_bytes=PIPE_BUF, quote=formatter.quote)

    @property
    def _batch(self) -> tuple[list[str], _LineFormatter]:
        assert self._waiting is not None and isinstance(self.formatter, _LineFormatter)
        return self._waiting, self.formatter

    @contextmanager
    def together(self) -> Iterator[None]:
        """Collect the lines of a `with` block, and write them at its end."""
        # Locked, so that no lines of other threads get into the batch.
        with self.lock:  # type: ignore[union-attr]
            self._waiting = []
            try:
                yield
            finally:
                lines, self._waiting = self._waiting, None
                for block in _blocks(lines):
                    self.stream.write(block)
                self.flush()


Batch = _LineHandler | _Events


def _blocks(lines: Iterable[str]) -> Iterator[str]:
    """Join lines to blocks that a pipe writes atomically: the supervisor writes to the same pipe."""
    block: list[str] = []
    length = 0
    for line in lines:
        nbytes = len(line.encode(errors="replace"))
        if block and length + nbytes > PIPE_BUF:
            yield "".join(block)
            block, length = [], 0
        block.append(line)
        length += nbytes
    if block:
        yield "".join(block)


def _thread_ended(ended: threading.ExceptHookArgs) -> None:
    name = None if ended.thread is None else ended.thread.name
    event("a thread ended", logging.ERROR, error=ended.exc_value, thread=name)


def _process_ended(_: type[BaseException], error: BaseException, __: TracebackType | None) -> None:
    event("the process ended", logging.CRITICAL, error=error)


def _fields(record: logging.LogRecord) -> Mapping[str, object]:
    fields: Mapping[str, object] = getattr(record, "fields", {})
    return fields if record.name == logger.name else {**fields, "logger": record.name}


def _time(moment: float) -> str:
    return datetime.fromtimestamp(moment, timezone.utc).isoformat(timespec="milliseconds")


class _LineFormatter(logging.Formatter, ABC):
    is_json: bool
    # Formats a text as a value in a line.
    quote: Callable[[str], str]

    @abstractmethod
    def line(self, moment: float, level: str, message: str, fields: Mapping[str, object]) -> str:
        """Return the line of a message."""


def _plain(value: object) -> str:
    if isinstance(value, int):
        return str(value)
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return json.dumps(text) if " " in text or not text.isprintable() else text


class _PlainFormatter(_LineFormatter):
    is_json, quote = False, staticmethod(_plain)

    def line(self, moment: float, level: str, message: str, fields: Mapping[str, object]) -> str:
        words = [_time(moment), level, message if message.isprintable() else json.dumps(message)]
        words += [f"{name}={_plain(value)}" for name, value in fields.items()]
        return " ".join(words)

    def format(self, record: logging.LogRecord) -> str:
        line = self.line(record.created, record.levelname, record.getMessage(), _fields(record))
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class _JsonFormatter(_LineFormatter):
    is_json, quote = True, staticmethod(json.dumps)

    def line(self, moment: float, level: str, message: str, fields: Mapping[str, object]) -> str:
        return json.dumps({"time": _time(moment), "level": level, "message": message, **fields}, default=str)

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        if record.exc_info:
            fields = {**fields, "traceback": self.formatException(record.exc_info)}
        return self.line(record.created, record.levelname, record.getMessage(), fields)
