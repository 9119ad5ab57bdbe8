"""Places of the outputs of prepared renders in their replies."""

from __future__ import annotations

from typing import NamedTuple


class Place(NamedTuple):
    """An output in the payload of a reply.

    Attributes:
        name: Name of the output.
        encoding: "plain", as the kernels write it; "levels", uint8; "float16" or "bfloat16".
        values: The number of values.
        offset: Bytes.
    """

    name: str
    encoding: str
    values: int
    offset: int
