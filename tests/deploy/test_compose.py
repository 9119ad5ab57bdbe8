"""The compose file: its schema, and whether the worker takes the options that it is given there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from support.deploy.prometheus import DEPLOY
from support.deploy.serve_options import SUPERVISOR_SECONDS, config_of
from support.deploy.tools import need_module

FILE = DEPLOY / "compose" / "compose.yaml"
COMPOSE = yaml.safe_load(FILE.read_text())
WORKERS = ("worker-cpu", "worker-cuda")


def seconds(text: str) -> float:
    match = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert match and text
    return 60 * int(match[1] or 0) + int(match[2] or 0)


def test_the_file_follows_the_specification_of_compose() -> None:
    need_module("check_jsonschema", "check-jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(FILE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", WORKERS)
def test_a_worker_takes_its_options_has_the_time_to_drain_and_may_do_nothing_else(name: str) -> None:
    service = COMPOSE["services"][name]
    config = config_of(service["command"])
    grace = seconds(service["stop_grace_period"])
    assert grace > config.lame_duck_seconds + config.drain_seconds + SUPERVISOR_SECONDS
    assert config.insecure and all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert f"{config.port}" in service["ports"][0].split(":")
    assert any(mount.split(":")[1] == config.spool for mount in service["volumes"])
    assert service["read_only"] and service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]


def test_prometheus_looks_where_the_worker_exports() -> None:
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = config["scrape_configs"]
    aliases = {alias for name in WORKERS for alias in COMPOSE["services"][name]["networks"]["default"]["aliases"]}
    (target,) = job["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    worker = config_of(COMPOSE["services"]["worker-cpu"]["command"])
    assert {host} == aliases and (int(port), "0.0.0.0") == (worker.metrics_port, worker.metrics_address)


def test_every_file_that_is_mounted_exists() -> None:
    mounts = [mount for service in COMPOSE["services"].values() for mount in service.get("volumes", [])]
    sources = [Path(mount.split(":")[0]) for mount in mounts if mount.startswith(".")]
    assert sources
    assert [source for source in sources if not (FILE.parent / source).exists()] == []
