"""Whether somebody at the terminal wants to end."""

from __future__ import annotations

import os
import select
import sys
import termios
import time
import tty
from types import TracebackType

_QUIT = b"q"


class Keys:
    """Waits, and notices a q meanwhile. Use it in a `with` block: keys are heard without Enter, and not shown."""

    def __init__(self) -> None:
        self._settings: list[object] | None = None

    def __enter__(self) -> Keys:
        if sys.stdin.isatty():
            self._settings = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._settings is not None:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self._settings)  # type: ignore[arg-type]

    def wait(self, seconds: float) -> bool:
        """Waits so long, or until a q; whether that came."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            if self._settings is None:
                time.sleep(left)
            elif select.select([sys.stdin], [], [], left)[0]:
                typed = os.read(sys.stdin.fileno(), 64)
                # At the end of the input nobody can say anything any more.
                if not typed or _QUIT in typed:
                    return True
        return False
