"""`lumigrad info`: shows a worker's device, limits and load, or the content of a scene file."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from lumigrad.client.base.arrays import Float32
from lumigrad.client.base.cautions import said
from lumigrad.client.base.counts import counted
from lumigrad.client.commands.options import add_connection, connect
from lumigrad.client.commands.scene_file import add_lod, has_levels, scene_bytes, scene_path
from lumigrad.client.commands.scene_text import aligned, scene_text
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats import is_gaussian_scene, read_scene
from lumigrad.client.formats.beside import read_offset
from lumigrad.client.formats.levels import GaussianLevels
from lumigrad.client.formats.ply_header import PlyHeader
from lumigrad.client.formats.save import WRITABLE, losses
from lumigrad.client.formats.scene import SRGB
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import json_text, say
from lumigrad.client.transport.addresses import Targets
from lumigrad.client.values.spheres import Spheres
from lumigrad.client.workers.info import WorkerInfo

_EXAMPLES = """\
examples:
  lumigrad info                                  the worker of LUMIGRAD_TARGET, else localhost:50051
  lumigrad info --target gpu-1:50051 --tls       another one, encrypted
  lumigrad info --json | jq .limits.max_pixels   for scripts
  lumigrad info scene.spz                        a scene file, without a worker
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    help_text = "a scene file to describe instead of a worker"
    parser.add_argument("file", metavar="FILE", type=scene_path, nargs="?", help=help_text)
    add_lod(parser)
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    add_connection(parser)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.file is not None:
        described = _described(arguments.file, arguments.lod)
        print(json_text(described) if arguments.json else scene_text(described))
        return 0
    with connect(arguments) as client:
        infos, lane = client.infos(), client.lane
    targets = Targets(arguments.target)
    if arguments.json:
        summaries = [{**dataclasses.asdict(info), "lane": lane} for info in infos]
        print(json_text(summaries[0] if targets.is_lone else summaries))
    else:
        print("\n\n".join(_worker_text(info, lane) for info in infos))
    answered = {info.target for info in infos}
    for address in () if targets.is_lone else targets.addresses():
        if address.target not in answered:
            say(f"no answer from {address.target}")
    return 0


def _described(path: Path, lod: int | None) -> dict[str, Any]:
    """Returns the content of a scene file; the box is that of the centres, in scene units."""
    if not path.exists():
        raise InvalidArgument.of("path", f"no such file: {path}; name a worker with --target")
    if lod is None and has_levels(path):
        count, corners, more = _levels_described(GaussianLevels.open(path))
    elif is_gaussian_scene(path):
        with said():
            stored = read_scene(path, skip_invalid=True, lod=lod)
        count, corners = len(stored), stored.means
        more = {"sh_degree": stored.degree, "antialiased": stored.antialiased, "not_finite": stored.skipped}
        more |= {"color_space": stored.color_space, "details": dict(stored.details)}
        more["precision"] = stored.lost
        more["would_lose"] = {suffix: losses(stored, suffix) for suffix in WRITABLE}
    else:
        corners = Spheres.load(path).positions
        faces = PlyHeader.read(path).elements.get("face")
        if faces is not None and faces.count:
            text = f"{path} is a mesh with {counted(faces.count, 'faces')}, whose vertices are shown as spheres"
            say(f"{text}; `lumigrad query {path} --spheres FILE` measures distances from it")
        count, more = len(corners), {"kind": "spheres"}
    box = {"low": corners.min(axis=0), "high": corners.max(axis=0)} if len(corners) else {}
    rounded = {name: [round(float(value), 4) for value in corner] for name, corner in box.items()}
    offset = read_offset(path)
    more |= {} if offset is None else {"offset": offset}
    size = {} if path.is_dir() else {"bytes": scene_bytes(path)}
    return {"file": str(path), **size, "kind": "gaussians", "count": count, **rounded, **more}


def _levels_described(levels: GaussianLevels) -> tuple[int, Float32, dict[str, Any]]:
    """Returns the number of Gaussians, corners around them, and facts, all from the index: scenes may exceed memory."""
    counts = levels.counts.sum(axis=0).tolist()
    details = {"format": "streamed SOG", "pages": len(levels), "level_counts": counts}
    facts = {"sh_degree": levels.sh_degree, "antialiased": levels.antialiased, "color_space": SRGB, "details": details}
    return counts[0], levels.bounds[:, 0].reshape(-1, 3), facts


def _worker_text(info: WorkerInfo, lane: str) -> str:
    limits = info.limits
    rows = {
        "target": info.target,
        "version": info.version,
        "device": f"{info.device}: {info.device_name}",
        "CPU kernels": f"{info.instruction_set}, {counted(info.threads, 'threads')}",
        "CUDA kernels": "built" if info.cuda_built else "not built",
        "engines": ", ".join(info.engines),
        "memory": f"{_size(info.device_memory_free_bytes)} free of {_size(info.device_memory_bytes)}",
        "load": f"{counted(info.scenes, 'scenes')}, {counted(info.contexts, 'contexts')}, "
        f"{counted(info.queue_depth, 'calls')} waiting",
        "limits": f"{_size(limits.max_payload_bytes)} per call, {limits.max_primitives:,} primitives, "
        f"{limits.max_pixels:,} pixels, {limits.max_cameras} cameras, {limits.max_channels} channels",
        "query limits": f"{limits.max_rows:,} spheres, {limits.max_obstacles:,} obstacles, "
        f"{limits.max_voxels:,} voxels",
        "payloads": "through shared memory" if lane == "shared" else "with the stream",
        "uptime": f"{info.uptime_seconds:.0f} s",
        "metrics": info.metrics_url or "at an unknown port",
    }
    return aligned(rows)


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


command = Command("show a worker's device, limits and load, or the content of a scene file", _add_arguments, _run)
