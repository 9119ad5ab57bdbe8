"""Links in Markdown: finding them, and leading them elsewhere."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

# A fenced block as a whole, which is left alone, or the target of a link or picture.
_TARGET = re.compile(r"^(?P<fence>```+).*?^(?P=fence)[ ]*$|(?P<before>\]\()(?P<target>[^()\s]+)(?=\))", re.M | re.S)


def targets(markdown: str) -> Iterator[str]:
    """What a page links to, as it is written there."""
    yield from (found["target"] for found in _TARGET.finditer(markdown) if found["target"])


def redirected(markdown: str, to: Callable[[str], str]) -> str:
    """The page with other targets.

    Args:
        markdown: the page.
        to: gives the new target for one as it is written; may return it as it is.
    """

    def replacement(found: re.Match[str]) -> str:
        return found["before"] + to(found["target"]) if found["target"] else found[0]

    return _TARGET.sub(replacement, markdown)


def is_external(target: str) -> bool:
    """Whether a link leaves the repository."""
    return re.match(r"[a-z][a-z0-9+.-]*:", target) is not None
