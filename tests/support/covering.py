"""A pytest plugin for pairwise testing: selects combinations of a test's parameters that cover all pairs of values.

Most faults that appear in one combination appear in all that share two of its values. So for a test with many
combinations the plugin selects enough of them to cover each value and each pair of values of two parameters, and
deselects the others. Values of one `parametrize` are one parameter. In pairs the instruction sets of the CPU count as
one value, since they are compiled from the same sources; a test without other parameters runs with one of them, which
its name chooses, so that the tests of a file take turns. `--whole` runs all combinations.
"""

from __future__ import annotations

import heapq
import itertools
import zlib
from collections.abc import Hashable, Sequence

import pytest

# Tests with at most this many combinations run all of them, except for instruction sets.
FEW = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds `--whole`."""
    parser.addoption("--whole", action="store_true", help="run all combinations of parameters")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects combinations that add no pair, among those that `-k` and `-m` have selected."""
    if config.getoption("whole"):
        return
    functions: dict[str, list[pytest.Item]] = {}
    for item in items:
        functions.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept: set[pytest.Item] = set()
    for name, combinations in functions.items():
        kept.update(combinations[index] for index in covering([_axes(item) for item in combinations], name))
    left = [item for item in items if item not in kept]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item in kept]


def covering(combinations: Sequence[Sequence[Hashable]], name: str = "") -> list[int]:
    """Indices of combinations that cover every value and pair of values in `combinations`.

    A combination has a value for each parameter. The result is deterministic; equally good ones take turns by `name`.
    """
    if len(combinations) <= FEW and not any(_is_of_cpu(value) for values in combinations for value in values):
        return list(range(len(combinations)))
    parts = [_parts(combination) for combination in combinations]
    covered: set[object] = set()
    chosen = []
    # The number of uncovered parts of a combination only decreases, so if it equals the queued number, no other
    # combination has more. Ties are broken by a hash; otherwise the first values of each parameter would prevail.
    queue = [(-len(each), zlib.crc32(f"{name} {index}".encode()), index) for index, each in enumerate(parts)]
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
    """The values and the pairs of values of a combination."""
    grouped = ["cpu" if _is_of_cpu(value) else value for value in combination]
    values = combination if len(combination) > 1 else grouped
    return {*enumerate(values), *itertools.combinations(enumerate(grouped), 2)}


def _is_of_cpu(value: Hashable) -> bool:
    """Whether a value is a machine: an instruction set of the CPU."""
    return isinstance(value, str) and value.startswith("cpu-")


def _axes(item: pytest.Item) -> list[Hashable]:
    """The values of an item's parameters; those of one `parametrize` are one value."""
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
    """A key of a parameter's value: its identity unless it is a string, since items share their values' objects."""
    return value if isinstance(value, str) else id(value)
