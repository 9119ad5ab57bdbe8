"""A stand-in for the Kubernetes API on loopback that stores objects, so that the real Helm can install a chart."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import yaml

VERSION = "v1.32.0"
# The kinds that charts may create: by group and version, the plural of each kind.
KINDS = {
    "v1": {"configmaps": "ConfigMap", "secrets": "Secret", "serviceaccounts": "ServiceAccount", "services": "Service"},
    "apps/v1": {"statefulsets": "StatefulSet"},
    "autoscaling/v2": {"horizontalpodautoscalers": "HorizontalPodAutoscaler"},
    "keda.sh/v1alpha1": {"scaledobjects": "ScaledObject"},
    "monitoring.coreos.com/v1": {"prometheusrules": "PrometheusRule", "servicemonitors": "ServiceMonitor"},
    "networking.k8s.io/v1": {"networkpolicies": "NetworkPolicy"},
    "policy/v1": {"poddisruptionbudgets": "PodDisruptionBudget"},
}


class KubernetesApi:
    """Objects by group and version, namespace, plural and name."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str, str], dict[str, Any]] = {}
        self.url = ""

    def made(self) -> list[dict[str, Any]]:
        return copy.deepcopy(list(self.objects.values()))

    def kubeconfig(self) -> str:
        """The kubeconfig for Helm."""
        entries = {
            "clusters": [{"name": "test", "cluster": {"server": self.url}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "users": [{"name": "test", "user": {}}],
        }
        return yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "test", **entries})

    def discovery(self, path: str) -> dict[str, Any] | None:
        """The reply at a discovery path; None for other paths."""
        if path == "/version":
            return {"major": "1", "minor": VERSION.split(".")[1], "gitVersion": VERSION}
        if path == "/api":
            return {"kind": "APIVersions", "versions": ["v1"]}
        if path == "/apis":
            return {
                "kind": "APIGroupList",
                "apiVersion": "v1",
                "groups": [_group(name) for name in KINDS if "/" in name],
            }
        group = path.removeprefix("/apis/").removeprefix("/api/")
        if group not in KINDS:
            return None
        verbs = ["create", "delete", "get", "list", "patch", "update"]
        resources = [
            {"name": plural, "singularName": kind.lower(), "kind": kind, "namespaced": True, "verbs": verbs}
            for plural, kind in KINDS[group].items()
        ]
        return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": resources}


def _group(name: str) -> dict[str, Any]:
    version = {"groupVersion": name, "version": name.rpartition("/")[2]}
    return {"name": name.partition("/")[0], "versions": [version], "preferredVersion": version}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    api: KubernetesApi

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        known = self.api.discovery(path)
        if known is not None:
            self._answer(200, known)
            return
        group, namespace, plural, name = self._key(path)
        if name:
            self._answer_with(self.api.objects.get((group, namespace, plural, name)))
            return
        items = [item for key, item in self.api.objects.items() if key[:3] == (group, namespace, plural)]
        kind = KINDS.get(group, {}).get(plural, "")
        self._answer(200, {"kind": f"{kind}List", "apiVersion": group, "metadata": {}, "items": items})

    def do_POST(self) -> None:
        group, namespace, plural, _ = self._key(self.path.partition("?")[0])
        made = self._body()
        key = (group, namespace, plural, made["metadata"]["name"])
        if key in self.api.objects:
            self._answer(409, {"kind": "Status", "status": "Failure", "reason": "AlreadyExists", "code": 409})
            return
        self.api.objects[key] = made
        self._answer(201, made)

    def _key(self, path: str) -> tuple[str, str, str, str]:
        parts = path.strip("/").split("/")
        group = parts[1] if parts[0] == "api" else "/".join(parts[1:3])
        rest = parts[2 if parts[0] == "api" else 3 :]
        if rest[:1] == ["namespaces"] and len(rest) > 2:
            return group, rest[1], rest[2], "/".join(rest[3:])
        return group, "", rest[0] if rest else "", "/".join(rest[1:])

    def _body(self) -> dict[str, Any]:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def _answer_with(self, found: dict[str, Any] | None) -> None:
        if found is None:
            self._answer(404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404})
        else:
            self._answer(200, found)

    def _answer(self, code: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Logs nothing."""


@contextmanager
def kubernetes_api() -> Iterator[KubernetesApi]:
    api = KubernetesApi()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"api": api}))
    api.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield api
    finally:
        server.shutdown()
        server.server_close()
