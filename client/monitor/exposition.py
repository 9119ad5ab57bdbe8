"""Prometheus' text format, as far as workers write it.

https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? +(\S+)(?: +-?\d+)?")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)",?')
_ESCAPES = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


class Sample(NamedTuple):
    """One value of a metric.

    Attributes:
        name: of the metric; of a histogram with _bucket, _sum or _count.
        labels: by name.
        value: as it was read.
    """

    name: str
    labels: Mapping[str, str]
    value: float


def parse(text: str) -> Iterator[Sample]:
    """The samples of a page; what is none is passed over. Labels come without characters that terminals act on."""
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.fullmatch(line.strip())
        if found is None:
            continue
        name, labels, value = found.groups()
        try:
            yield Sample(name, {key: _plain(raw) for key, raw in _LABEL.findall(labels or "")}, float(value))
        except ValueError:
            continue


def _plain(raw: str) -> str:
    text = re.sub(r"\\.", lambda escape: _ESCAPES.get(escape[0], escape[0]), raw)
    return "".join(character if character.isprintable() else "?" for character in text)
