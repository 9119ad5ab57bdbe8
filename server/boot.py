"""Which start of the machine this is."""

from __future__ import annotations

import secrets

_FILE = "/proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """The same for all processes until the machine starts again; where that cannot be told, no two are the same."""
    try:
        with open(_FILE, encoding="ascii") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError):
        return secrets.token_hex(16)
