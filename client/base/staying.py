"""Objects that cannot leave their process, because their connections cannot."""

from __future__ import annotations

from typing import NoReturn


class Staying:
    """Base class of objects that cannot be pickled or deep-copied, and that objects with references to them cannot."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client, its streams and its trainers cannot be pickled or copied deeply: their connections belong to "
            'this process; pass the address, "host:port", and make a Client of it where it is needed (operators take '
            "an address as their client, too)"
        )
