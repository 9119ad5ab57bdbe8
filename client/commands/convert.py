"""`lumigrad convert`: converts a scene of Gaussians to another file format."""

from __future__ import annotations

import argparse
from pathlib import Path

from lumigrad.client.commands.scene_file import add_scene, read_gaussians
from lumigrad.client.formats import save_gaussians
from lumigrad.client.formats.scene_view import SceneView
from lumigrad.client.shell.catalog import Command

_EXAMPLES = """\
examples:
  lumigrad convert scene.ply scene.spz     about a tenth of the size, for browsers
  lumigrad convert scene.sog scene.ply     for trainers: every number in float32
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EXAMPLES
    add_scene(parser)
    help_text = "the file to write: .ply keeps everything, .spz and .splat round"
    parser.add_argument("output", metavar="OUTPUT", type=Path, help=help_text)


def _run(arguments: argparse.Namespace) -> int:
    stored = read_gaussians(arguments.scene)
    # A .splat file cannot store this setting.
    antialiased = stored.antialiased and arguments.output.suffix.lower() != ".splat"
    save_gaussians(stored.gaussians(), arguments.output, antialiased=antialiased)
    view = SceneView.load(arguments.scene)
    if view is not None:
        view.save(arguments.output)
    print(f"{arguments.output}: {len(stored):,} Gaussians, {arguments.output.stat().st_size:,} bytes")
    return 0


command = Command("write a scene of Gaussians in another file format", _add_arguments, _run)
