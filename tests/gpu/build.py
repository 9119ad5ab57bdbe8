"""gpu-build: inspects the machine, and builds the native module only for its GPU."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import sysconfig
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from tests.gpu import site
from tests.gpu.context import BUILD, PACK, ROOT, Context, environment, python
from tests.gpu.device import Device, in_turns

_COPIED_BYTES = 1 << 30


def run(context: Context) -> dict[str, Any]:
    """Probes the machine, builds, and assembles the folder for imports."""
    results: dict[str, Any] = {"machine": _machine(), "gpu": _gpu(context)}
    context.write("build", results)
    if context.emulated:
        native: Path | None = site.installed_native()
    else:
        native, results["steps"] = _compile(context, results["gpu"]["capability"])
    if native is None:
        return {**results, "status": "not built", "errors": _errors(context)}
    results["site"] = site.assemble(native)
    context.write("build", results)
    imported = context.run(python("-c", _IMPORT, context.device), environment=environment(), limit=120.0)
    return {**results, "import": imported.tail(4), "status": imported.status}


_IMPORT = """
import sys
from lumigrad.kernels import _native, device
lack = device.cuda_lack()
print(_native.__file__, _native.CUDA_ARCHITECTURES, lack or "cuda:0 can be used")
sys.exit(bool(lack) and sys.argv[1] == "cuda")
"""


def _machine() -> dict[str, Any]:
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "processors": len(os.sched_getaffinity(0)),
        "tools": {name: shutil.which(name) for name in ("nvcc", "ncu", "compute-sanitizer", "cmake", "ninja")},
        "pack": PACK.is_dir(),
    }


def _gpu(context: Context) -> dict[str, Any]:
    """The GPU, driver and torch, and the rate of copies on the device, counting bytes read and written."""
    import torch

    device = Device(context.device)
    found: dict[str, Any] = {"torch": torch.__version__, "torch_cuda": torch.version.cuda}
    if context.emulated:
        found |= {"name": "emulation", "driver": "none", "capability": [0, 0]}
    else:
        properties = torch.cuda.get_device_properties(0)
        query = ["nvidia-smi", "--query-gpu=driver_version,clocks.sm,clocks.mem", "--format=csv,noheader"]
        found |= {
            "name": properties.name,
            "capability": [properties.major, properties.minor],
            "processors": properties.multi_processor_count,
            "memory_bytes": properties.total_memory,
            "l2_bytes": getattr(properties, "L2_cache_size", None),
            "driver": context.run(query, limit=20.0).output.strip().split(",")[0],
        }
    source = torch.ones(device.size(_COPIED_BYTES, 1 << 20), dtype=torch.uint8, device=device.torch)
    target = torch.empty_like(source)
    copied = in_turns(device, {"copy": lambda _: target.copy_(source)}, seconds=2.0)["copy"]
    return {**found, "copy_gb_per_s": round(2 * source.numel() / copied.median_ms / 1e6, 1)}


def _compile(context: Context, capability: list[int]) -> tuple[Path | None, dict[str, Any]]:
    folder = BUILD / "native"
    configure = configured(folder, f"{capability[0]}{capability[1]}-real")
    build = [_tool("cmake"), "--build", str(folder), "--target", "_native"]
    steps: dict[str, Any] = {}
    for name, command in (("configure", configure), ("compile", build)):
        done = context.run(command)
        steps[name] = {"status": done.status, "seconds": done.seconds}
        if done.code != 0:
            return None, steps
    found = sorted(folder.glob(f"_native*{sysconfig.get_config_var('EXT_SUFFIX')}"))
    return (found[0] if found else None), steps


def configured(folder: Path, architecture: str, program: str = sys.executable) -> list[str]:
    """CMake's command for the native module alone, for this machine's processor and one architecture of GPUs.

    The messages are those of the pack, since their generator may be missing here.
    """
    return [
        _tool("cmake"), "-S", str(ROOT), "-B", str(folder), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
        f"-DCMAKE_MAKE_PROGRAM={_tool('ninja')}", f"-DPython_EXECUTABLE={program}", "-DLUMIGRAD_MESSAGES=OFF",
        "-DLUMIGRAD_INSTRUCTION_SETS=NATIVE", "-DLUMIGRAD_CUDA=ON", f"-DLUMIGRAD_CUDA_ARCHITECTURES={architecture}",
        *_headers(),
    ]  # fmt: skip


def _tool(name: str) -> str:
    """A program from the running Python's folder, where pip puts it; a system's CMake may not know the toolkit."""
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    return shutil.which(name, path=places) or name


def _headers() -> list[str]:
    """CMake's option for Python's headers from the pack, if this machine has none."""
    installed, packed = Path(sysconfig.get_path("include")), PACK / "include"
    if (installed / "Python.h").is_file():
        return []
    version = "{}.{}".format(*sys.version_info)
    if not (packed / "Python.h").is_file():
        raise FileNotFoundError(
            f"Python.h is neither in {installed} nor in {packed}; install the headers of Python {version}, or run "
            f"`make gpu-pack HEADERS_OF=a Python {version} that has them`"
        )
    if packed_version(packed) != version:
        raise FileNotFoundError(
            f"{packed} has the headers of Python {packed_version(packed)}, but this is Python {version}; run "
            f"`make gpu-pack HEADERS_OF=a Python {version}`, or run make gpu with PYTHON=another Python"
        )
    return [f"-DPython_INCLUDE_DIR={packed}"]


def packed_version(headers: Path) -> str:
    """The version of Python according to its headers."""
    text = (headers / "patchlevel.h").read_text(encoding="utf-8")
    return ".".join(re.findall(r"#define PY_M(?:AJOR|INOR)_VERSION\s+(\d+)", text))


def _errors(context: Context) -> list[str]:
    log = (context.out / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
    telling = [line for line in log if "rror" in line]
    return [*telling[:20], *log[-20:]]
