"""`lumigrad convert`: converts a scene of Gaussians to another file format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lumigrad.client.commands.options import option
from lumigrad.client.commands.scene_file import add_scene, read_gaussians, scene_bytes
from lumigrad.client.formats import save_scene
from lumigrad.client.formats.save import WRITABLE, losses, suffix_of
from lumigrad.client.formats.scene_offset import read_offset, write_offset
from lumigrad.client.formats.scene_view import SceneView, beside
from lumigrad.client.shell.catalog import Command

_EXAMPLES = """\
examples:
  lumigrad convert scene.ply scene.spz                about a tenth of the size, for browsers
  lumigrad convert scene.sog scene.ply                for trainers: every number in float32
  lumigrad convert scene.ply scene.glb                for tools that read glTF
  lumigrad convert scene/lod-meta.json scene.usdc --lod 2

It says what the format loses; lumigrad info SCENE says that of all formats.
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    add_scene(parser)
    help_text = f"the file to write; its name ends in {', '.join(WRITABLE)}"
    parser.add_argument("output", metavar="OUTPUT", type=_output, help=help_text)
    option(parser, "--sh-degree", "cut harmonics above this degree (default: keep all)", type=int, choices=range(5))


def _output(text: str) -> Path:
    """Parses the name of a file that scenes are written to."""
    if not text.lower().endswith(WRITABLE):
        raise argparse.ArgumentTypeError(f"expected a name that ends in {', '.join(WRITABLE)}, got {text}")
    return Path(text)


def _run(arguments: argparse.Namespace) -> int:
    stored = read_gaussians(arguments.scene, arguments.lod)
    if arguments.sh_degree is not None and arguments.sh_degree < stored.degree:
        stored = stored.of_degree(arguments.sh_degree)
    save_scene(stored, arguments.output)
    view = SceneView.load(arguments.scene)
    if view is not None:
        view.save(arguments.output)
    _write_offset(arguments.scene, arguments.output)
    print(f"{arguments.output}: {len(stored):,} Gaussians, {scene_bytes(arguments.output):,} bytes")
    if lost := losses(stored, suffix_of(arguments.output)):
        print(f"lumigrad: {arguments.output} {'; '.join(lost)}", file=sys.stderr)
    return 0


def _write_offset(scene: Path, output: Path) -> None:
    """Copies the offset beside a scene, or removes that of another scene; says so."""
    offset = read_offset(scene)
    if offset is None and (stale := beside(output, "offset")).exists():
        print(f"lumigrad: removes {stale}, because the coordinates of {output} have no offset", file=sys.stderr)
    write_offset(output, offset)


command = Command("write a scene of Gaussians in another file format", _add_arguments, _run)
