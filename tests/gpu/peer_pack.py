"""The peers of the pack: those built for this machine are linked into SITE, and others are compiled if time allows."""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from tests.gpu.context import PACK, SITE, Context, environment, python, read_json, write_json
from tests.gpu.runner import NotHere

# The part of the time that is left which building one peer may take, and what each takes with 16 cores; seconds.
_BUILD_SHARE = 0.5
_BUILD_SECONDS = {"gsplat": 300.0, "fussim": 60.0}
# In SITE: what became of each peer.
_REPORT = "peers.json"
# In the folder of a peer, but not its packages.
_NOT_LINKED = ("peer.json", "LICENSE", "LICENSE.md")


def install(context: Context) -> dict[str, dict[str, Any]]:
    """Links the peers that fit; then builds, from the sources of the pack, what is still missing."""
    found: dict[str, dict[str, Any]] = {}
    for manifest in sorted((PACK / "peers").glob("*/peer.json")):
        name, why = manifest.parent.name, misfit(read_json(manifest))
        found[name] = {"status": f"does not fit: {why}" if why else _link(manifest.parent), "seconds": 0.0}
    for source in sorted(path for path in (PACK / "peers").glob("*") if path.is_file()):
        name = source.name.split("-")[0]
        if found.get(name, {}).get("status") != "ok":
            found[name] = _build(context, name, source)
    SITE.mkdir(parents=True, exist_ok=True)
    write_json(SITE / _REPORT, found)
    return found


def misfit(manifest: Mapping[str, Any]) -> str:
    """Why what was built does not work here; "" if it does."""
    differing = []
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    for what, there, mine in (("torch", manifest["torch"], torch.__version__), ("Python", manifest["python"], here)):
        if there is not None and there != mine:
            differing.append(f"built for {what} {there}, here is {mine}")
    major, minor = torch.cuda.get_device_capability()
    # Machine code also works on later devices of the same major version.
    if not any(int(arch[:-1]) == major and int(arch[-1]) <= minor for arch in manifest["arch"]):
        differing.append(f"built for sm_{', sm_'.join(manifest['arch'])}, here is sm_{major}{minor}")
    return "; ".join(differing)


def _link(folder: Path) -> str:
    for path in folder.iterdir():
        if path.name in _NOT_LINKED:
            continue
        SITE.mkdir(parents=True, exist_ok=True)
        place = SITE / path.name
        place.unlink(missing_ok=True)
        place.symlink_to(path)
    return "ok"


def _build(context: Context, name: str, source: Path) -> dict[str, Any]:
    limit, least = _BUILD_SHARE * context.left(), _BUILD_SECONDS.get(name, 0.0)
    if limit < least:
        return {"status": f"not built: takes {least:.0f} s, and there are {limit:.0f} s", "seconds": 0.0}
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    flags = {"TORCH_CUDA_ARCH_LIST": capability, "MAX_JOBS": str(os.cpu_count())}
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--target", str(SITE)]
    command = python("-m", "pip", "install", *options, str(source))
    done = context.run(command, limit=limit, environment={**environment(), **flags})
    found = {"status": done.status, "seconds": done.seconds}
    return found if done.code == 0 else {**found, "output": done.tail(30)}


def load(module: str) -> ModuleType:
    """Imports a peer's module; raises NotHere with what kept it from being here."""
    name = module.split(".", maxsplit=1)[0]
    # Extensions may lack kernels that are never called; some are loaded only at the first call.
    sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        status = read_json(SITE / _REPORT).get(name, {}).get("status", "not in the pack")
        raise NotHere(f"{error} ({name}: {status})") from None


def load_compiler() -> None:
    """Loads NVRTC as torch's packages have it, which Warp then finds by its name."""
    for folder in map(Path, sys.path):
        for library in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return
