"""YAML files as plain values."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from typing import Any

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.extras import require

_LONGEST_DESCRIPTION = 300


def read_yaml(name: str, path: str | PathLike[str]) -> Any:
    """What a file holds: mappings, lists, numbers and strings. Needs the extra `robot`.

    Args:
        name: of the argument that the file came by, for errors.
        path: the file.

    Raises:
        InvalidArgument: no YAML.
    """
    yaml = require("yaml", "robot", "reading YAML files")
    content = Path(path).read_bytes()
    try:
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())[:_LONGEST_DESCRIPTION]
        raise InvalidArgument.of(name, f"{fspath(path)}: expected a YAML file, got {reason}") from error
