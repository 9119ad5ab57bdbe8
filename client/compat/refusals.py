"""Refusals of the client and the worker, told in the words of a drop-in."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from lumigrad.client.errors import InvalidArgument, Violation


@contextmanager
def renamed(kind: type[InvalidArgument], arguments: Mapping[str, str]) -> Iterator[None]:
    """Raises `kind` where the client or the worker refuses an argument.

    Args:
        kind: the drop-in's own error.
        arguments: what a part of a path in the request, or the client's own argument, is called in the drop-in.
    """
    try:
        yield
    except InvalidArgument as error:
        violations = tuple(
            Violation(_renamed(violation.field, arguments), violation.description) for violation in error.violations
        )
        text = "; ".join(f"{violation.field}: {violation.description}" for violation in violations)
        raise kind(text or str(error), violations) from error


def _renamed(field: str, arguments: Mapping[str, str]) -> str:
    known = [arguments[part] for part in re.findall(r"\w+", field) if part in arguments]
    return known[-1] if known else field
