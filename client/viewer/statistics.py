"""What pictures cost: the last ones of a browser."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass

from lumigrad.client.viewer.picture import Picture
from lumigrad.client.viewer.stream import Shown

_KEPT = 2000
# Rates are of the last so many seconds.
_WINDOW_S = 2.0


@dataclass(frozen=True)
class Record:
    """A picture that was shown.

    Attributes:
        moment_s: when it had arrived, on the clock `time.monotonic`.
        width: pixels.
        height: pixels.
        is_sharp: made while the camera rested.
        nbytes: of the files that went to the browser.
        kernel_ms: of the worker's kernels.
        queue_ms: that it waited at the worker.
        render_ms: from the order to the picture in this process.
        deliver_ms: from there to the browser, and its word that it has it.
    """

    moment_s: float
    width: int
    height: int
    is_sharp: bool
    nbytes: int
    kernel_ms: float
    queue_ms: float
    render_ms: float
    deliver_ms: float


class Statistics:
    """Of one browser. Safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._records: deque[Record] = deque(maxlen=_KEPT)

    def note(self, shown: Shown[Picture]) -> Record:
        """Adds a picture."""
        order, picture = shown.order, shown.picture
        record = Record(
            time.monotonic(),
            order.width,
            order.height,
            order.is_sharp,
            picture.nbytes,
            picture.timings.kernel_ms,
            picture.timings.stages.get("queue", 0.0),
            1000 * shown.render_s,
            1000 * shown.deliver_s,
        )
        with self._lock:
            self._records.append(record)
        return record

    @property
    def records(self) -> tuple[Record, ...]:
        """The last ones, oldest first."""
        with self._lock:
            return tuple(self._records)

    @property
    def rate(self) -> float | None:
        """Pictures per second while the camera moves; None: it does not."""
        newest = time.monotonic() - _WINDOW_S
        moments = [record.moment_s for record in self.records if record.moment_s > newest and not record.is_sharp]
        return (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 2 else None

    def html(self) -> str:
        """A table for the panel."""
        records = self.records
        if not records:
            return ""
        last, rate = records[-1], self.rate
        kind = "at rest" if last.is_sharp else "moving"
        rows = {
            "picture": f"{last.width} x {last.height}, {kind}",
            "rate": "-" if rate is None else f"{rate:.1f} / s",
            "size": f"{last.nbytes / 1000:.0f} kB",
            "kernels": f"{last.kernel_ms:.1f} ms",
            "queue": f"{last.queue_ms:.1f} ms",
            "rendering in all": f"{last.render_ms:.0f} ms",
            "to the browser": f"{last.deliver_ms:.0f} ms",
        }
        cells = "".join(
            f'<tr><td style="padding-right:1em;opacity:0.7">{name}</td><td>{value}</td></tr>'
            for name, value in rows.items()
        )
        return f'<table style="font-size:0.8em;margin:0.1em 0.6em 0.6em">{cells}</table>'
