"""`lumigrad sensorsim`: checks driving scenes, and sends the requests of a simulator's log to a worker."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from lumigrad.client.base.arrays import Float64
from lumigrad.client.base.cautions import warn_caller
from lumigrad.client.base.counts import counted
from lumigrad.client.base.replacing import replaced
from lumigrad.client.client import Client
from lumigrad.client.commands.options import add_connection, connect, option
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats import StoredScene, check_displayed, read_drive_log, read_scene
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import naming
from lumigrad.client.shell.parser import path_of, written_folder
from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.protos.drive.doubts import doubts, doubts_of_files
from lumigrad.protos.drive.json_node import ManifestError
from lumigrad.protos.drive.manifest import NAME, Manifest, read_manifests

_HEADING = "examples:\n"
_CHECK = """\
  lumigrad sensorsim check scenes/                       what a worker would serve
"""
_REPLAY = """\
  lumigrad sensorsim replay rollout.asl                  the requests of AlpaSim's log again
  lumigrad sensorsim replay rollout.asl --pictures out   and keep the pictures
"""
_SUFFIXES = {b"\x89PNG": ".png", b"\xff\xd8\xff\xe0": ".jpg"}
_FAILED = 1


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _HEADING + _CHECK + _REPLAY
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, title="actions")
    text = "read the scenes in a folder, and their files, without a worker"
    check = actions.add_parser("check", help=text, description=text, epilog=_HEADING + _CHECK)
    check.add_argument("path", metavar="DIR", type=path_of, help="the folder of scenes")
    text = "send the requests of a simulator's log to a worker again"
    replay = actions.add_parser("replay", help=text, description=text, epilog=_HEADING + _REPLAY)
    replay.add_argument("path", metavar="FILE", type=path_of, help="the log")
    option(replay, "--pictures", "folder for the pictures", metavar="DIR", type=written_folder)
    add_connection(replay)


def _run(arguments: argparse.Namespace) -> int:
    if arguments.action == "check":
        for manifest in _manifests(arguments.path):
            _check(manifest)
        return 0
    with connect(arguments) as client:
        return _replay(client, arguments.path, arguments.pictures)


def _manifests(folder: Path) -> tuple[Manifest, ...]:
    try:
        return read_manifests(folder)
    except ManifestError as error:
        raise InvalidArgument.of("path", str(error)) from error


def _check(scene: Manifest) -> None:
    """Reads a scene's files; prints its content, and warns of what is doubtful."""
    paths = dict.fromkeys(file.path for file in scene.files)
    # Only the means are kept: all files together may be larger than memory.
    means: dict[Path, Float64] = {}
    drawn: list[str] = []
    for path in paths:
        stored = read_scene(path)
        check_displayed(stored, path)
        means[path] = stored.means.astype(np.float64)
        drawn += _drawn_otherwise(path.relative_to(scene.folder), stored)
    print("\n".join(_described(scene, {path: len(each) for path, each in means.items()})), flush=True)
    for doubt in (*doubts(scene), *doubts_of_files(scene, [means[file.path] for file in scene.files]), *drawn):
        warn_caller(f"{scene.folder / NAME}: {doubt}")


def _drawn_otherwise(path: Path, stored: StoredScene) -> Iterator[str]:
    """Yields what a file says of its Gaussians that frames of simulators do not follow."""
    if stored.antialiased:
        yield f"{path} was trained with antialiasing, and is drawn without it, so that small Gaussians look larger"
    if stored.is_flat:
        yield f"{path} has surfels, which are drawn as volumes of no thickness"


def _described(scene: Manifest, counts: Mapping[Path, int]) -> Iterator[str]:
    """Yields lines about a scene; `counts` are the Gaussians in its files."""
    span = "any time" if scene.time_range_us is None else "{} to {} us".format(*scene.time_range_us)
    yield f"{scene.scene_id}: {span}"
    tracks: dict[Path, list[str]] = {}
    for track in scene.tracks:
        tracks.setdefault(track.gaussians.path, []).append(f"track {track.track_id}, {track.semantic_class}")
    for path, count in counts.items():
        what = " of " + "; ".join(tracks[path]) if path in tracks else ""
        yield f"  {path.relative_to(scene.folder)}: {counted(count, 'Gaussians')}{what}"
    for camera in scene.cameras:
        spec = camera.intrinsics
        model = str(spec.WhichOneof("camera_param")).removesuffix("_param")
        shutter = sensorsim_pb2.ShutterType.Name(spec.shutter_type)
        yield f"  {camera.logical_id}: {spec.resolution_w}x{spec.resolution_h}, {model}, {shutter}"
    for mask in scene.ego_masks:
        yield f"  {mask.path.relative_to(scene.folder)}: ego mask of {mask.camera_logical_id}, {mask.rig_config_id}"


def _replay(client: Client, log: Path, folder: Path | None) -> int:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    milliseconds: list[float] = []
    frames, errors = 0, 0
    started = time.perf_counter()
    for requests in read_drive_log(log):
        begun = time.perf_counter()
        pictures = client.drive_pictures(requests)
        milliseconds.append((time.perf_counter() - begun) * 1e3)
        for request, picture in zip(requests, pictures, strict=True):
            name = f"{frames:06d}-{request.camera_intrinsics.logical_id or 'camera'}"
            frames += 1
            if picture.error:
                errors += 1
                print(f"{name}: {picture.error}")
            elif folder is not None:
                path = folder / (name.replace("/", "-") + _SUFFIXES.get(picture.image[:4], ".rgb"))
                with naming(path), replaced(path) as new:
                    new.write_bytes(picture.image)
    seconds = time.perf_counter() - started
    if not frames:
        raise InvalidArgument.of("path", f"{log}: expected requests for pictures, got a log without any")
    p50, p99 = np.percentile(milliseconds, (50, 99))
    print(
        f"{counted(len(milliseconds), 'calls')}, {counted(frames, 'frames')}, {counted(errors, 'errors')}; "
        f"{p50:.1f} ms p50, {p99:.1f} ms p99 a call; {frames / seconds:.1f} frames/s"
    )
    return _FAILED if errors else 0


command = Command("check driving scenes, or replay the log of a simulator", _add_arguments, _run)
