"""Drop-ins take no client: their worker is the default one."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def by_default(target: str) -> None:
    """Has each test use the default worker."""
