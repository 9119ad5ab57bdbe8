"""The peers in the pack, each in a folder with its peer.json; those that fit this machine are linked into SITE."""

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

from tests.gpu.context import PACK, SITE, read_json, write_json
from tests.gpu.runner import NotHere

# The report in SITE, with the outcome of each peer.
_REPORT = "peers.json"
# Files of a peer's folder that are not packages.
_NOT_LINKED = ("peer.json", "LICENSE", "LICENSE.md")


def install() -> dict[str, str]:
    """Links the peers that fit; returns "ok", or why a peer does not fit, by name."""
    found = {}
    for manifest in sorted((PACK / "peers").glob("*/peer.json")):
        why = misfit(read_json(manifest))
        found[manifest.parent.name] = f"does not fit: {why}" if why else _link(manifest.parent)
    SITE.mkdir(parents=True, exist_ok=True)
    write_json(SITE / _REPORT, found)
    return found


def misfit(manifest: Mapping[str, Any]) -> str:
    """The reason why a build does not work here; "" if it does."""
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


def load(module: str) -> ModuleType:
    """Imports a peer's module; raises NotHere with the reason if that fails."""
    name = module.split(".", maxsplit=1)[0]
    # Extensions may lack kernels that are never called; some are loaded only at the first call.
    sys.setdlopenflags(sys.getdlopenflags() & ~os.RTLD_NOW | os.RTLD_LAZY)
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise NotHere(f"{error} ({name}: {read_json(SITE / _REPORT).get(name, 'not in the pack')})") from None


def load_compiler() -> None:
    """Loads NVRTC from torch's packages, which Warp then finds by its name."""
    for folder in map(Path, sys.path):
        for library in sorted(folder.glob("nvidia/*/lib/libnvrtc.so.*")):
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
            return
