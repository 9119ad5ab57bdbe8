"""Writes the metrics and previews of a fit for TensorBoard."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from lumigrad.client.base.arrays import Array
from lumigrad.client.base.extras import require

# TensorBoard shows what is in the file; each flush also waits for the disk.
_FLUSH_SECONDS = 10.0


class EventLog:
    """An event file for TensorBoard, written by the calling thread.

    tensorboardX's SummaryWriter writes in a thread. On a full disk that thread ends, and its callers wait forever.
    """

    def __init__(self, folder: Path) -> None:
        """Creates the folder and a file in it.

        Raises:
            OSError: the file cannot be created.
            MissingPackage: tensorboardX is not installed.
        """
        require("tensorboardX", "fit", "metrics for TensorBoard")
        from tensorboardX import summary
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event

        folder.mkdir(parents=True, exist_ok=True)
        self._summary, self._event = summary, Event
        self._writer: Any = EventsWriter(str(folder / "events"))
        self._flushed = time.monotonic()

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Records numbers by name."""
        for name, value in values.items():
            self._add(self._summary.scalar(f"fit/{name}", value), step)

    def picture(self, picture: Array, step: int) -> None:
        """Records a preview [H, W, 3]."""
        self._add(self._summary.image("fit/preview", picture, dataformats="HWC"), step)

    def close(self) -> None:
        """Writes what is left."""
        if self._writer is not None:
            self._try(self._writer.close)

    def _add(self, summary: Any, step: int) -> None:
        if self._writer is None:
            return
        event = self._event(wall_time=time.time(), step=step, summary=summary)
        self._try(lambda: self._writer.write_event(event))
        if self._writer is not None and time.monotonic() - self._flushed >= _FLUSH_SECONDS:
            self._try(self._writer.flush)
            self._flushed = time.monotonic()

    def _try(self, write: Callable[[], object]) -> None:
        """Ends the log where it cannot be written; the fit goes on."""
        try:
            write()
        except OSError as error:
            self._writer = None
            print(f"fitting: the log for TensorBoard ends here: {error.strerror or error}", file=sys.stderr, flush=True)
