"""A pytest plugin: of a test's combinations of parameters it runs some in which all pairs of values occur.

A fault that shows in one combination shows nearly always in all that share two of its values. So of a function with
many combinations those are kept that are needed for each value, and each pair of values of two parameters, to occur as
in the whole; the others are deselected. Values of one `parametrize` belong together. The instruction sets of the CPU
take turns: in pairs they count as one value, since they are compiled from the same sources. `--whole` runs everything.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Hashable, Sequence

import pytest

# Functions with no more combinations than this are run whole.
FEW = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--whole`."""
    parser.addoption("--whole", action="store_true", help="run all combinations of parameters, not only all pairs")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects combinations that are not needed, of those that `-k` and `-m` have left."""
    if config.getoption("whole"):
        return
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for combinations in functions.values():
        kept.update(combinations[index] for index in covering([_axes(item) for item in combinations]))
    left = [item for item in items if item not in kept]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item in kept]


def covering(combinations: Sequence[Sequence[Hashable]]) -> list[int]:
    """Indices of some combinations in which each value and pair occurs that occurs in one.

    A combination has a value for each parameter. The choice is the same for the same combinations in the same order.
    """
    if len(combinations) <= FEW:
        return list(range(len(combinations)))
    parts = [_parts(combination) for combination in combinations]
    covered: set[object] = set()
    chosen = []
    # What a combination would add only shrinks: if it is still what it was when it was queued, none adds more. Among
    # equals the order has no pattern; else the first values of each parameter would be chosen most often.
    queue = [(-len(each), zlib.crc32(b"%d" % index), index) for index, each in enumerate(parts)]
    heapq.heapify(queue)
    while queue:
        queued, order, index = heapq.heappop(queue)
        added = len(parts[index] - covered)
        if added == -queued:
            chosen.append(index)
            covered |= parts[index]
        elif added:
            heapq.heappush(queue, (-added, order, index))
    return sorted(chosen)


def _parts(combination: Sequence[Hashable]) -> set[object]:
    """What a combination covers: its values, and its pairs of them."""
    grouped = ["cpu" if str(value).startswith("cpu-") else value for value in combination]
    return {*enumerate(combination), *itertools.combinations(enumerate(grouped), 2)}


def _axes(item: pytest.Item) -> list[Hashable]:
    """The values of an item's parameters, those of one `parametrize` as one."""
    callspec = getattr(item, "callspec", None)
    if callspec is None:
        return []
    alone = dict(callspec.params)
    axes: list[Hashable] = []
    for mark in item.iter_markers("parametrize"):
        names = mark.args[0] if mark.args else mark.kwargs["argnames"]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        axes.append(tuple(_comparable(alone.pop(name)) for name in names if name in alone))
    return [*axes, *(_comparable(value) for value in alone.values())]


def _comparable(value: object) -> Hashable:
    """What is equal for the same value of a parameter: parameters share their values, and not all can be compared."""
    return value if isinstance(value, str) else id(value)
