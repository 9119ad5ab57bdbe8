"""Every query of the dashboard, the rules and the alerts, asked of a real Prometheus that scrapes a real worker."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from lumigrad.client import Client
from support.calls.metrics_table import OPEN, documented
from support.deploy.prometheus import DEPLOY, Prometheus, prometheus
from support.deploy.tools import need
from support.workers.mixed_load import CAMERA, spheres, use_everything
from support.workers.worker import WorkerProcess, worker

TOKEN = "a-token-for-the-tests"
SECONDS = 150
BOARD = json.loads((DEPLOY / "grafana" / "lumigrad.json").read_text(encoding="utf-8"))
# Values like those that Grafana puts in place of its variables.
VARIABLES = {"$__rate_interval": "1m", "$job": "lumigrad", "$instance": ".*"}
SELECTOR = re.compile(r"\b(up|(?:instance|job):\w+:\w+|lumigrad_\w+|process_\w+)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!=|=)"([^"]*)"')


def panels() -> list[dict]:
    return [panel for panel in BOARD["panels"] if panel["type"] != "row"]


def asked_by_the_board() -> list[str]:
    expressions = [target["expr"] for panel in panels() for target in panel["targets"]]
    for name, value in VARIABLES.items():
        expressions = [expression.replace(name, value) for expression in expressions]
    return expressions


def rules(file: str, key: str) -> dict[str, str]:
    groups = yaml.safe_load((DEPLOY / "prometheus" / file).read_text(encoding="utf-8"))["groups"]
    return {rule[key]: rule["expr"] for group in groups for rule in group["rules"]}


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    tokens = tmp_path_factory.mktemp("tokens") / "tokens"
    tokens.write_text(f"lab: {TOKEN}\n")
    options = ("--tokens-file", str(tokens), "--spool", str(tmp_path_factory.mktemp("spool")))
    with worker("--device", "cpu", *options) as process:
        yield process


@pytest.fixture(scope="module")
def server(busy: WorkerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """A Prometheus that has seen everything that a worker does, at least twice, since rates need two samples."""
    program = need("prometheus", "apt-get install prometheus")
    folder = tmp_path_factory.mktemp("prometheus")
    with prometheus(program, folder, [f"127.0.0.1:{busy.metrics_port}"]) as server:
        wanted = asked_by_the_board() + list(rules("rules.yml", "record"))
        until = time.monotonic() + SECONDS
        with Client(busy.target, token=TOKEN) as client:
            while any(not server.query(expression) for expression in wanted) and time.monotonic() < until:
                use_everything(client)
                # A call that may be batched with others: the scene is stored, and no state is retained.
                client.render(client.put(spheres(seed=9)), CAMERA)
                time.sleep(1)
        yield server


def test_each_query_of_the_dashboard_shows_something(server: Prometheus) -> None:
    assert [expression for expression in asked_by_the_board() if not server.query(expression)] == []


def test_each_recording_rule_records(server: Prometheus) -> None:
    assert [name for name in rules("rules.yml", "record") if not server.query(name)] == []


def test_prometheus_can_evaluate_all_rules_and_no_alert_fires_without_need(server: Prometheus) -> None:
    assert [rule["name"] for rule in server.rules() if rule.get("lastError")] == []
    firing = {rule["name"] for rule in server.rules() if rule.get("state") == "firing"}
    assert firing == set()


def test_whatever_is_selected_is_exported_with_these_labels(server: Prometheus) -> None:
    expressions = [
        *asked_by_the_board(),
        *rules("rules.yml", "record").values(),
        *rules("alerts.yml", "alert").values(),
    ]
    found = {selector for expression in expressions for selector in SELECTOR.findall(expression)}
    assert len(found) > 40
    for name, matchers in found:
        labels = MATCHER.findall(matchers)
        exists = ",".join(f'{label}=~".+"' for label, _, _ in labels)
        assert server.query(f"{name}{{{exists}}}"), f"{name}{{{matchers}}}"
        for label, _, values in labels:
            assert is_documented(name, label, values), f"{name}{{{matchers}}}"


def is_documented(name: str, label: str, values: str) -> bool:
    """Whether a metric's label can have these values at all, by the table of metrics."""
    if label in ("job", "instance"):
        return values in ("lumigrad", ".*")
    base = re.sub(r"_(bucket|sum|count)$", "", name)
    entry = documented().get(base) or documented()[name]
    return set(values.split("|")) <= (entry.labels[label] or OPEN[label])


def test_the_dashboard_is_well_formed() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    places = set()
    for panel in panels():
        assert panel["description"] and panel["title"], panel["id"]
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not cells & places, panel["title"]
        places |= cells


def test_grafana_is_told_where_the_dashboard_and_prometheus_are() -> None:
    folder = DEPLOY / "grafana" / "provisioning"
    (provider,) = yaml.safe_load((folder / "dashboards" / "lumigrad.yaml").read_text())["providers"]
    (source,) = yaml.safe_load((folder / "datasources" / "prometheus.yaml").read_text())["datasources"]
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    mounts = [mount.split(":") for mount in compose["services"]["grafana"]["volumes"]]
    assert any(Path(inside).parent == Path(provider["options"]["path"]) for _, inside, *_ in mounts)
    assert source["url"] == "http://prometheus:9090" and "prometheus" in compose["services"]
