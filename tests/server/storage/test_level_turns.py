"""Pages that arrive are checked in turns, like the payloads of other calls."""

from __future__ import annotations

import hashlib
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from lumigrad.server.core.turns import Turn, Turns
from lumigrad.server.scenes.levels import checked_rows
from support.workers.held_device import StandInCall

PAGES, ROWS, ROW_BYTES = 3, 2, 4
ALL = bytes(range(PAGES * ROWS * ROW_BYTES))


class Stream:
    """Rows that have all arrived."""

    def __init__(self) -> None:
        self._at = 0

    def fill(self, buffer: memoryview) -> memoryview:
        buffer[:] = ALL[self._at : self._at + buffer.nbytes]
        self._at += buffer.nbytes
        return buffer

    def expect_end(self) -> None:
        assert self._at == len(ALL)


def table(checked: list[int]) -> Any:
    size = ROWS * ROW_BYTES
    parts = [ALL[at : at + size] for at in range(0, len(ALL), size)]
    digests = np.array([[list(hashlib.sha256(part).digest())] for part in parts], np.uint8)
    return SimpleNamespace(
        counts=np.full((PAGES, 1), ROWS),
        row_bytes=ROW_BYTES,
        digests=digests,
        check_rows=lambda rows, where: checked.append(len(rows)),
    )


def test_each_page_waits_for_its_turn_and_gives_it_back() -> None:
    turns, call, checked = Turns(), StandInCall("mine"), list[int]()
    call.turn = Turn(turns, "mine")
    other = Turn(turns, "theirs")
    arriving: Any = checked_rows(table(checked), Stream(), lambda n: memoryview(bytearray(n)), "levels", call)  # type: ignore[arg-type]
    for page in range(PAGES):
        other.take(lambda: None)
        next_page = threading.Thread(target=next, args=(arriving,))
        next_page.start()
        next_page.join(0.2)
        # The page is neither checked nor handed on while another call has the turn.
        assert next_page.is_alive()
        assert len(checked) == page
        other.give()
        next_page.join(100)
        assert len(checked) == page + 1
    assert next(arriving, None) is None
