"""Runs the real Helm from the package helm-sdkpy, in a process of its own, since the library includes Go's runtime.

python -m support.deploy.helm < {"kubeconfig": ..., "release": ..., "chart": ..., "values": {...}}
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from support.deploy.tools import miss

ROOT = Path(__file__).parents[3]
# Installed by `make deploy-tools`.
LIBRARY = ROOT / "build" / "deploy-tools" / "helm_sdkpy" / "_lib" / "linux-amd64" / "libhelm_sdkpy.so"
NAMESPACE = "rendering"


class HelmError(RuntimeError):
    """An error that Helm reports."""


def install(**order: Any) -> dict[str, Any]:
    """Installs a chart; returns Helm's report."""
    if not LIBRARY.exists():
        miss("needs Helm: make deploy-tools")
    # By default Helm stores releases in Secrets, which it sends as protobuf; the stand-in reads JSON only.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "HELM_DRIVER": "memory"}
    done = subprocess.run(
        [sys.executable, "-m", "support.deploy.helm"],
        input=json.dumps(order),
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    if done.returncode != 0:
        raise HelmError(done.stderr)
    return json.loads(done.stdout)


def main() -> None:
    order, handle, report = json.load(sys.stdin), ctypes.c_ulonglong(), ctypes.c_char_p()
    library = ctypes.CDLL(str(LIBRARY))
    library.helm_sdkpy_last_error.restype = ctypes.c_char_p
    kubeconfig, release, chart = (order[name].encode() for name in ("kubeconfig", "release", "chart"))
    values = json.dumps(order["values"]).encode()
    # Waiting for pods would never end, since nothing starts them.
    options = json.dumps({"wait": False, "timeout_seconds": 60, "disable_openapi_validation": True}).encode()
    if (
        library.helm_sdkpy_config_create(NAMESPACE.encode(), kubeconfig, None, b"{}", ctypes.byref(handle)) != 0
        or library.helm_sdkpy_install(handle, release, chart, values, b"", options, ctypes.byref(report)) != 0
    ):
        sys.exit(library.helm_sdkpy_last_error().decode())
    sys.stdout.write((report.value or b"").decode())


if __name__ == "__main__":
    main()
