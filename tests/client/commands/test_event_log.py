"""The log of a fit for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client.fitting.event_log import EventLog

pytest.importorskip("tensorboardX")
from tensorboardX.event_file_writer import event_pb2
from tensorboardX.record_writer import masked_crc32c


def events(folder: Path) -> list[event_pb2.Event]:
    """The events of the one file in a folder: after each length and record follows a check sum."""
    (file,) = folder.iterdir()
    data, found = file.read_bytes(), []
    while data:
        length = int.from_bytes(data[:8], "little")
        record, check = data[12 : 12 + length], int.from_bytes(data[12 + length : 16 + length], "little")
        assert masked_crc32c(record) == check
        found.append(event_pb2.Event.FromString(record))
        data = data[16 + length :]
    return found


def test_numbers_and_pictures_are_in_the_file(tmp_path: Path) -> None:
    log = EventLog(tmp_path / "new" / "log")
    log.scalars({"loss": 0.25, "count": 7}, 10)
    log.picture(np.full((4, 6, 3), 128, np.uint8), 20)
    log.close()
    version, *rest = events(tmp_path / "new" / "log")
    assert version.file_version == "brain.Event:2"
    (loss,), (count,), (picture,) = (event.summary.value for event in rest)
    assert [event.step for event in rest] == [10, 10, 20]
    assert (loss.tag, loss.simple_value, count.tag, count.simple_value) == ("fit/loss", 0.25, "fit/count", 7)
    assert (picture.tag, picture.image.width, picture.image.height) == ("fit/preview", 6, 4)


def test_a_full_disk_ends_the_log_and_not_the_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = EventLog(tmp_path)
    (file,) = tmp_path.iterdir()
    (number,) = (int(entry) for entry in os.listdir("/proc/self/fd") if _is_open(entry, file))
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, number)
    os.close(full)
    for step in range(1000):
        log.scalars({"loss": 0.25}, step)
    log.close()
    assert capsys.readouterr().err == "fitting: the log for TensorBoard ends here: No space left on device\n"


def _is_open(entry: str, file: Path) -> bool:
    try:
        return Path(f"/proc/self/fd/{entry}").samefile(file)
    except OSError:
        return False
