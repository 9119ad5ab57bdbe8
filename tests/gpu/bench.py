"""gpu-bench: the times of the engines on the device, and of the server on it."""

from __future__ import annotations

from typing import Any

from tests.gpu.context import Context
from tests.gpu.runner import supervise


def run(context: Context) -> dict[str, Any]:
    """Runs the cases."""
    return supervise(context, "bench", "tests.gpu.cases")
