"""Which worker a scene belongs to: rendezvous hashing, so that all clients agree and few scenes move."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def ranked(key: str, names: Iterable[str]) -> list[str]:
    """The names in the order in which a key prefers them.

    Each name has a weight that depends on the key and on that name alone. Without one name, the order of the others
    stays; a new one comes first for its share of the keys. Who comes first without it is the second: the keys of a
    worker that is lost spread over all others.
    """
    return sorted(names, key=lambda name: (_weight(key, name), name), reverse=True)


def _weight(key: str, name: str) -> bytes:
    return hashlib.blake2b(f"{key}\0{name}".encode(), digest_size=8).digest()
