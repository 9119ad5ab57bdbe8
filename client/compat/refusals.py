"""Converts errors of the client and the worker to those of a drop-in, with its argument names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType

from lumigrad.client.errors import InvalidArgument, Violation


@contextmanager
def renamed(
    kind: type[InvalidArgument], arguments: Mapping[str, str], numbers: Mapping[str, int] = MappingProxyType({})
) -> Iterator[None]:
    """Raises `kind` where the client or the worker refuses an argument.

    Args:
        kind: the drop-in's own error.
        arguments: the drop-in's argument, by a part of a path in the request, by two consecutive parts
            ("end.rotation"), which take precedence, or by the client's own argument.
        numbers: positions of the drop-in's arguments, if its errors name them.
    """
    try:
        yield
    except InvalidArgument as error:
        violations = tuple(_renamed(violation, arguments, numbers) for violation in error.violations)
        text = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
        raise kind(text or str(error), violations=violations) from error


def _renamed(violation: Violation, arguments: Mapping[str, str], numbers: Mapping[str, int]) -> Violation:
    parts = re.findall(r"\w+", violation.field)
    pairs = (f"{first}.{second}" for first, second in zip(("", *parts), parts, strict=False))
    names = (pair if pair in arguments else part for pair, part in zip(pairs, parts, strict=True))
    known = [arguments[name] for name in names if name in arguments]
    if not known:
        return violation
    number = f"invalid argument {numbers[known[-1]]}: " if known[-1] in numbers else ""
    return Violation(known[-1], number + violation.description)
