"""Writes metrics, log lines and spans of calls that have ended, in batches, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import TypeVar

from lumigrad.kernels._native import RecordBatch, Records
from lumigrad.server.core import logs
from lumigrad.server.core.metrics import Metrics
from lumigrad.server.core.record import CallRecord

# How long the log line of a successful call may be delayed; a process that is killed loses the lines of this time.
_SECONDS = 0.1

T = TypeVar("T")
# Records the spans of a call; returns their ids, for the log.
Trace = Callable[[CallRecord], Mapping[str, str]]


class Notes:
    """Takes the records of calls, and writes them: ten times a second, and at once after an error."""

    def __init__(self, metrics: Metrics, trace: Trace | None = None, least_ms: float = 0.0) -> None:
        """Start the thread. Reading `metrics` counts all calls that have been added by then.

        Calls that succeeded are logged only if they took at least `least_ms`.
        """
        self._least_ms = least_ms
        self._metrics = metrics
        self._trace = trace
        # Records not yet in the metrics, and records not yet in the log; appending and removing are atomic.
        self._new: deque[CallRecord] = deque()
        self._counted: deque[CallRecord] = deque()
        # Records of calls that ran without Python, all successful; then those of them that are not yet in the log.
        self.native = Records()
        self._counted_native: deque[RecordBatch] = deque()
        # Held while a batch goes into the metrics, and into the log. Reading metrics must not wait for a log that is
        # stuck.
        self._counting, self._writing = threading.Lock(), threading.Lock()
        self._is_urgent = threading.Event()
        self._is_closed = False
        metrics.before_read = self._count
        # Records the stages of one request of a call that is still in progress.
        self.stages = metrics.stages
        self._thread = threading.Thread(target=self._write_batches, name="notes", daemon=True)
        self._thread.start()

    def add(self, record: CallRecord) -> None:
        """Take the record of a call that has ended; nothing may change it afterwards."""
        self._new.append(record)
        # Operators look for failures as they happen, and there are few.
        if record.code != "OK":
            self._is_urgent.set()

    def write(self) -> None:
        """Write all records added so far."""
        self._count()
        with self._writing, logs.together() as log:
            for record in _taken(self._counted):
                self._log(record, log)
            for batch in _taken(self._counted_native):
                log.add_calls(batch, self._least_ms)

    def close(self) -> None:
        """Write what is left, and end the thread."""
        self._is_closed = True
        self._is_urgent.set()
        self._thread.join()
        self.write()

    def _write_batches(self) -> None:
        while not self._is_closed:
            self._is_urgent.wait(_SECONDS)
            self._is_urgent.clear()
            try:
                self.write()
            except Exception as error:
                logs.event("recording calls failed", logging.ERROR, error=error)

    def _count(self) -> None:
        with self._counting:
            batch, native = _taken(self._new), self.native.take()
            self._counted.extend(batch)
            self._metrics.calls_ended(batch)
            if len(native):
                self._counted_native.append(native)
                self._metrics.native_calls_ended(native)

    def _log(self, record: CallRecord, log: logs.Batch) -> None:
        ids = self._trace(record) if self._trace is not None else {}
        failed = sum(code != "OK" for code in record.item_codes)
        is_good = record.code == "OK" and not failed and not record.nonfinite
        if is_good and record.milliseconds < self._least_ms:
            return
        fields = {
            "request_id": record.request_id,
            "method": record.method,
            "code": record.code,
            "ms": round(record.milliseconds, 3),
            "received": record.bytes_received,
            "sent": record.bytes_sent,
        }
        if record.tenant:
            fields["tenant"] = record.tenant
        if not (ids or record.why or record.steps or record.nonfinite or record.item_codes):
            log.add("call", record.ended_at, fields)
            return
        optional = {
            "steps": record.steps,
            "nonfinite": record.nonfinite,
            "items": len(record.item_codes),
            "failed_items": failed,
            **ids,
            "why": record.why,
        }
        is_ours = record.code == "INTERNAL"
        logs.event(
            "call",
            logging.ERROR if is_ours else logging.WARNING if record.nonfinite else logging.INFO,
            error=record.error if is_ours else None,
            moment=record.ended_at,
            **fields,
            **{name: value for name, value in optional.items() if value},
        )
        record.error = None


def _taken(records: deque[T]) -> list[T]:
    """Remove and return all records that the queue holds now."""
    return [records.popleft() for _ in range(len(records))]
