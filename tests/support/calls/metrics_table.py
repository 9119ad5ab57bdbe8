"""Parses the documentation's table of metrics, to compare it with the metrics that a worker exports."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from lumigrad.protos.service import SERVICE_NAMES, methods

DOCUMENT = Path(__file__).parents[3] / "docs" / "operations" / "monitoring.md"
# The permitted values of labels whose values the table does not list.
OPEN = {
    "method": {f"{name.rpartition('.')[2]}.{method.name}" for name in SERVICE_NAMES for method in methods(name)},
    "code": {code.name for code in grpc.StatusCode},
    "tenant": {"lab", "(others)"},
}


@dataclass
class Entry:
    """A metric: its kind, and the values of each of its labels."""

    kind: str
    labels: dict[str, set[str]] = field(default_factory=dict)


def rows(text: str, *header: str) -> Iterator[list[str]]:
    """The rows of the one table with this header, as the cells' texts."""
    start = re.search(r"\| " + r" \| ".join(re.escape(cell) for cell in header) + r" \|\n\|[-|]+\|\n", text)
    assert start, header
    for line in text[start.end() :].split("\n\n", maxsplit=1)[0].splitlines():
        yield [cell.strip() for cell in line.strip("|").split("|")]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def documented() -> dict[str, Entry]:
    """The documented metrics by name; a label without listed values may have any value."""
    text = DOCUMENT.read_text(encoding="utf-8")
    found = {}
    for name, kind, labels, unit, meaning in rows(text, "name", "kind", "labels", "unit", "meaning"):
        assert unit and meaning, name
        entry = found[words(name)[0]] = Entry(kind)
        for group in filter(None, labels.split(";")):
            before, _, values = group.partition(":")
            *others, label = words(before)
            entry.labels |= {other: set() for other in others} | {label: set(words(values))}
    return found


def kernel_stages() -> set[tuple[str, str, str]]:
    text = DOCUMENT.read_text(encoding="utf-8")
    return {
        (engine, op, stage)
        for engines, ops, stages in rows(text, "`engine`", "`op`", "`stage`")
        for engine in words(engines)
        for op in words(ops)
        for stage in words(stages)
    }
