"""A real Prometheus on loopback that scrapes real workers."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from support.ports import reserved_port

DEPLOY = Path(__file__).parents[3] / "deploy"
RULES = ("rules.yml", "alerts.yml")


class Prometheus:
    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an instant query; raises an HTTPError if Prometheus refuses the expression."""
        return self._get("query", query=expression)["result"]

    def rules(self) -> list[dict[str, Any]]:
        return [rule for group in self._get("rules")["groups"] for rule in group["rules"]]

    def is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/-/ready", timeout=60):
                return True
        except (urllib.error.URLError, ConnectionError):
            return False

    def _get(self, what: str, **arguments: str) -> Any:
        url = f"{self.url}/api/v1/{what}?{urllib.parse.urlencode(arguments)}"
        with urllib.request.urlopen(url, timeout=60) as response:
            return json.load(response)["data"]


@contextmanager
def prometheus(program: str, folder: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Prometheus with the configuration of deploy/compose, but other targets and a shorter scrape interval."""
    config = yaml.safe_load((DEPLOY / "compose" / "prometheus.yml").read_text(encoding="utf-8"))
    # A busy worker must answer within the interval.
    config["global"] = {"scrape_interval": "2s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": list(targets)}]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    for name in RULES:
        shutil.copy(DEPLOY / "prometheus" / name, folder / name)
    with reserved_port() as port:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=subprocess.DEVNULL,
            stderr=(folder / "log").open("w"),
        )
        try:
            server = Prometheus(port)
            until = time.monotonic() + 150
            while not server.is_ready():
                assert process.poll() is None and time.monotonic() < until, (folder / "log").read_text()
                time.sleep(0.1)
            yield server
        finally:
            process.kill()
            process.wait()
