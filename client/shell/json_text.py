"""Results for scripts: JSON on one line."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any


def json_text(value: Any) -> str:
    """Any of what results are made of; null in place of numbers that JSON does not know."""
    return json.dumps(_plain(value), allow_nan=False)


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
