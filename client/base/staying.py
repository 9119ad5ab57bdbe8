"""Objects that stay in their process, since their connections do."""

from __future__ import annotations

from typing import NoReturn


class Staying:
    """An object that cannot be pickled or copied deeply, nor can what refers to it."""

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a client, its streams and its trainers cannot be pickled or copied deeply: their connections belong to "
            'this process; pass the address, "host:port", and make a Client of it where it is needed (operators take '
            "an address as their client, too)"
        )
