"""The table of metrics in the documentation is what a worker exports after a mixed load, no more and no less."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from lumigrad.client import Client
from support.calls.metrics_table import OPEN, Entry, documented, kernel_stages
from support.workers.mixed_load import CAMERA, spheres, use_everything
from support.workers.worker import worker

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def families() -> list:
    """The metrics of a worker that has done a little of everything."""
    with (
        worker("--device", "cpu", tokens={"lab": TOKEN}) as process,
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
