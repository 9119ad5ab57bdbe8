"""`lumigrad convert`: converts a scene of Gaussians to another file format."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumigrad.client.base.counts import counted
from lumigrad.client.commands.options import option
from lumigrad.client.commands.scene_file import add_scene, read_gaussians, replacing, scene_bytes
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.formats import save_scene
from lumigrad.client.formats.beside import SceneView, beside, read_offset, write_offset
from lumigrad.client.formats.levels.building import write_levels
from lumigrad.client.formats.save import WRITABLE, losses, suffix_of
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import say
from lumigrad.client.shell.parser import written_path
from lumigrad.client.shell.stages import Stages

_EXAMPLES = """\
examples:
  lumigrad convert scene.ply scene.spz                about a tenth of the size, for browsers
  lumigrad convert scene.sog scene.ply                for trainers: every number in float32
  lumigrad convert scene.ply scene.glb                for tools that read glTF
  lumigrad convert scene/lod-meta.json scene.usdc --lod 2
  lumigrad convert city.ply city/ --levels            levels of detail, for large scenes

It says what the format loses; lumigrad info SCENE says that of all formats.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    add_scene(parser)
    help_text = f"the file to write; its name ends in {', '.join(WRITABLE)}; with --levels a folder"
    parser.add_argument("output", metavar="OUTPUT", type=written_path, help=help_text)
    help_text = "build levels of detail, and write them as streamed SOG into the folder OUTPUT"
    option(parser, "--levels", help_text, action="store_true")
    option(parser, "--sh-degree", "cut harmonics above this degree (default: keep all)", type=int, choices=range(5))


def _run(arguments: argparse.Namespace) -> int:
    written, lost = _with_levels(arguments) if arguments.levels else _as_file(arguments)
    _write_beside(arguments.scene, arguments.output)
    # Printed last, since that may fail.
    print(f"{arguments.output}: {written}")
    if lost:
        say(f"{arguments.output} {'; '.join(lost)}")
    return 0


def _as_file(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Writes one file; returns a summary, and what the format loses."""
    if not str(arguments.output).lower().endswith(WRITABLE):
        names = ", ".join(WRITABLE)
        raise InvalidArgument.of(
            "OUTPUT", f"expected a name that ends in {names}, or --levels with a folder, got {arguments.output}"
        )
    stored = read_gaussians(arguments.scene, arguments.lod)
    if arguments.sh_degree is not None and arguments.sh_degree < stored.degree:
        stored = stored.of_degree(arguments.sh_degree)
    with replacing(arguments.output):
        save_scene(stored, arguments.output)
    size = counted(scene_bytes(arguments.output), "bytes")
    return f"{counted(len(stored), 'Gaussians')}, {size}", losses(stored, suffix_of(arguments.output))


def _with_levels(arguments: argparse.Namespace) -> tuple[str, list[str]]:
    """Writes a folder of levels of detail; returns a summary, and what the format loses."""
    if arguments.lod is not None:
        raise InvalidArgument.of("lod", "levels are built from the finest; leave it out")
    if str(arguments.output).lower().endswith(WRITABLE) and not arguments.output.is_dir():
        text = f"expected a folder with --levels, got {arguments.output}, which is called like a file"
        raise InvalidArgument.of("OUTPUT", f"{text}; name another, or leave --levels out")
    degree = {} if arguments.sh_degree is None else {"sh_degree": arguments.sh_degree}
    with replacing(arguments.output), Stages() as stages:
        built = write_levels(arguments.scene, arguments.output, progress=stages.show, **degree)
    if built.skipped:
        say(f"left out {counted(built.skipped, 'Gaussians')} with values that are not finite")
    size = sum(file.stat().st_size for file in arguments.output.rglob("*") if file.is_file())
    pages, levels = counted(built.pages, "pages"), counted(built.levels, "levels")
    written = f"{counted(built.count, 'Gaussians')} in {pages} with {levels}, {size:,} bytes"
    return written, losses(built.example, ".sog")


def _write_beside(scene: Path, output: Path) -> None:
    """Copies the view and the offset beside a scene; in place of those that it lacks, removes stale ones."""
    view, offset = SceneView.load(scene), read_offset(scene)
    if view is not None:
        view.save(output)
    elif others := _others_with(beside(output, "view"), output):
        say(f"keeps {beside(output, 'view')} for {others[0]}, although it is read for {output.name}, too")
    else:
        _remove_stale(beside(output, "view"), f"because {scene} has no view")
    if offset is None:
        _remove_stale(beside(output, "offset"), f"because the coordinates of {output} have no offset")
    else:
        write_offset(output, offset)


def _others_with(view: Path, output: Path) -> list[str]:
    """Returns the names of other scenes whose view is in the same file, if it exists."""
    if not view.exists():
        return []
    files = (file for file in output.resolve().parent.iterdir() if file.name.lower().endswith(WRITABLE))
    return sorted(file.name for file in files if file.name != output.name and beside(file, "view").name == view.name)


def _remove_stale(path: Path, why: str) -> None:
    if path.exists():
        say(f"removes {path}, {why}")
        path.unlink()


command = Command("write a scene of Gaussians in another file format", _add_arguments, _run)
