"""The chart: its values with their comments, and the objects that Helm renders from values."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from support.deploy import helm
from support.deploy.kubernetes_api import kubernetes_api

CHART = Path(__file__).parents[3] / "deploy" / "helm" / "lumigrad"


class Rendered:
    """The objects that a release consists of, by kind and name."""

    def __init__(self, objects: list[dict[str, Any]], notes: str) -> None:
        self.objects, self.notes = objects, notes

    def one(self, kind: str) -> dict[str, Any]:
        (found,) = self.all(kind)
        return found

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [made for made in self.objects if made["kind"] == kind]

    @property
    def pod(self) -> dict[str, Any]:
        """The specification of a worker's pod."""
        return self.one("StatefulSet")["spec"]["template"]["spec"]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.pod["containers"]
        return container


def install(values: Mapping[str, Any], release: str = "lumigrad") -> Rendered:
    """Renders the objects that `helm install` sends to Kubernetes."""
    with kubernetes_api() as api:
        report = helm.install(kubeconfig=api.kubeconfig(), release=release, chart=str(CHART), values=dict(values))
        return Rendered(api.made(), report["info"]["notes"])


def described() -> Iterator[tuple[str, str, str]]:
    """Each value with a comment: its name with dots, its default, and the text of the comment."""
    path: list[tuple[int, str]] = []
    comment: list[str] = []
    defaults = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    for line in (CHART / "values.yaml").read_text(encoding="utf-8").splitlines():
        text = line.strip()
        if text.startswith("# -- ") or (comment and text.startswith("# ")):
            comment.append(text.removeprefix("# -- ").removeprefix("# "))
            continue
        match = re.fullmatch(r"( *)(\w+):.*", line)
        if match is None:
            continue
        depth = len(match[1])
        path = [*(step for step in path if step[0] < depth), (depth, match[2])]
        if comment:
            name = ".".join(key for _, key in path)
            value: Any = defaults
            for _, key in path:
                value = value[key]
            yield name, json.dumps(value), " ".join(comment)
            comment = []


def table() -> str:
    """The values as the rows of the README's table."""
    return "\n".join(f"| `{name}` | `{default}` | {text} |" for name, default, text in described())


if __name__ == "__main__":
    print(table())
