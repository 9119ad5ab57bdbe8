"""Runs the real Helm from the package helm-sdkpy, in a process of its own, since the library includes Go's runtime.

python -m support.deploy.helm < {"verb": "install", "release": ..., "chart": ..., "values": {...}, ...}
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from support.deploy.tools import miss

ROOT = Path(__file__).parents[3]
# Installed by `make deploy-tools`.
LIBRARY = ROOT / "build" / "deploy-tools" / "helm_sdkpy" / "_lib" / "linux-amd64" / "libhelm_sdkpy.so"
NAMESPACE = "rendering"


class HelmError(RuntimeError):
    """An error that Helm reports."""


def helm(verb: str, kubeconfig: str, **arguments: Any) -> dict[str, Any]:
    """Run install, lint or package; returns Helm's report."""
    if not LIBRARY.exists():
        miss("needs Helm: make deploy-tools")
    order = json.dumps({"verb": verb, "kubeconfig": kubeconfig, **arguments})
    # By default Helm stores releases in Secrets, which it sends as protobuf; the stand-in reads JSON only.
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "tests"), "HELM_DRIVER": "memory"}
    done = subprocess.run(
        [sys.executable, "-m", "support.deploy.helm"],
        input=order,
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    if done.returncode != 0:
        raise HelmError(done.stderr)
    return json.loads(done.stdout)


@cache
def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(str(LIBRARY))
    library.helm_sdkpy_last_error.restype = ctypes.c_char_p
    return library


def _call(function: str, *arguments: Any) -> str:
    result = ctypes.c_char_p()
    code = getattr(_library(), f"helm_sdkpy_{function}")(*arguments, ctypes.byref(result))
    if code != 0:
        raise HelmError(_library().helm_sdkpy_last_error().decode())
    return (result.value or b"").decode()


def _main() -> None:
    order = json.load(sys.stdin)
    handle = ctypes.c_ulonglong()
    kubeconfig = order["kubeconfig"].encode()
    if _library().helm_sdkpy_config_create(NAMESPACE.encode(), kubeconfig, None, b"{}", ctypes.byref(handle)) != 0:
        raise HelmError(_library().helm_sdkpy_last_error().decode())
    release, chart = order.get("release", "").encode(), order.get("chart", "").encode()
    values = json.dumps(order.get("values", {})).encode()
    # Waiting for pods would never end, since nothing starts them.
    options = json.dumps({"wait": False, "timeout_seconds": 60, "disable_openapi_validation": True}).encode()
    verb = order["verb"]
    if verb == "install":
        said = _call(verb, handle, release, chart, values, b"", options)
    elif verb == "package":
        said = json.dumps({"path": _call(verb, handle, chart, order["folder"].encode())})
    else:
        said = _call(verb, handle, chart)
    sys.stdout.write(said)


if __name__ == "__main__":
    try:
        _main()
    except HelmError as error:
        sys.exit(str(error))
