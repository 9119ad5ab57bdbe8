"""Numbers with what they count, in words."""

from __future__ import annotations


def counted(count: int, name: str) -> str:
    """Returns a number and what it counts.

    Args:
        count: the number.
        name: the plural of what is counted, which ends in s.
    """
    return f"{count:,} {name.removesuffix('s') if count == 1 else name}"
