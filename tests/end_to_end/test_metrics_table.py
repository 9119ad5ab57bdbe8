"""The table of metrics in the documentation is what a worker exports after a mixed load, no more and no less."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from lumigrad.client import Client
from lumigrad.protos.service import SERVICE_NAMES, methods
from support.mixed_load import CAMERA, spheres, use_everything
from support.worker import worker

DOCUMENT = Path(__file__).parents[2] / "docs" / "operations.md"
TOKEN = "a-token-for-the-tests"
# Labels whose values are not listed, and those that they may have.
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
    """What the document says; a label without values is open."""
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


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> list:
    """What a worker exports that has done a little of everything."""
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"lab: {TOKEN}\n")
    with (
        worker("--device", "cpu", "--tokens-file", str(tokens)) as process,
        Client(process.target, token=TOKEN) as client,
    ):
        use_everything(client)
        frame = client.render(spheres(seed=9), [CAMERA] * 8)
        assert frame.color.nbytes > 64 << 10
        client.info()
        return list(text_string_to_metric_families(process.metrics()))


def exported(families: list) -> dict[str, Entry]:
    found = {}
    for family in families:
        name = family.name + ("_total" if family.type == "counter" else "")
        entry = found[name] = Entry(family.type)
        for sample in family.samples:
            for label, value in sample.labels.items():
                if label != "le":
                    entry.labels.setdefault(label, set()).add(value)
    return found


def test_names_and_kinds_are_those_of_the_table(families: list) -> None:
    told = {name: entry.kind for name, entry in documented().items()}
    assert told == {name: entry.kind for name, entry in exported(families).items()}


def test_labels_and_their_values_are_those_of_the_table(families: list) -> None:
    told, found = documented(), exported(families)
    for name, entry in told.items():
        assert set(entry.labels) == set(found[name].labels), name
        for label, values in entry.labels.items():
            if values:
                assert values == found[name].labels[label], (name, label)
            elif label in OPEN:
                assert found[name].labels[label] <= OPEN[label], (name, label)


def test_kernel_stages_are_those_of_the_table(families: list) -> None:
    (family,) = [family for family in families if family.name == "lumigrad_kernel_seconds"]
    found = {tuple(sample.labels[label] for label in ("engine", "op", "stage")) for sample in family.samples}
    assert found == kernel_stages()


def test_no_label_grows_with_the_number_of_scenes_or_calls(families: list) -> None:
    labels = {label for entry in exported(families).values() for label in entry.labels}
    assert not labels & {"scene_id", "scene", "context_id", "request_id", "trace_id", "peer"}
    assert sum(len(family.samples) for family in families) < 2000
