"""The options of `lumigrad fit` for its recipe, and checks that they apply."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from lumigrad.client.commands.options import COUNT, SECONDS, option
from lumigrad.client.commands.scene_file import PRIMITIVES, scene_path
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.recipe import Checkpoint
from lumigrad.client.shell.parser import written_folder
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# Default of --cap: Gaussians for each initial point.
GROWTH = 3
_FLAGS = ("refine_poses", "refine_end_poses", "refine_intrinsics", "refine_lenses", "exposures")
# Defaults that `complete` fills in, so that options that were given can be told apart.
_USUAL: Mapping[str, Any] = MappingProxyType(
    {"kind": "gaussians", "steps": 7000, "strategy": "mcmc", "sh_degree": 3, "seed": 0, "max_size": 1600}
    | dict.fromkeys(_FLAGS, False)
)
_OF_GAUSSIANS = ("sh_degree", "strategy", "cap")


def usual(group: argparse._ActionsContainer, flag: str, help_text: str, **settings: Any) -> None:
    """Declares an option whose default `complete` fills in."""
    default = _USUAL[flag[2:].replace("-", "_")]
    option(group, flag, f"{help_text} (default: {default})", **settings)


def add_recipe(group: argparse._ArgumentGroup) -> None:
    """Declares the options of a recipe."""
    help_text = "primitives to fit (default: gaussians, or what --begin has)"
    option(group, "--kind", help_text, choices=("gaussians", "spheres"))
    help_text = "Gaussians as ellipsoids, or as flat discs, for surfaces (default: volumes, or what --begin has)"
    option(group, "--primitive", help_text, choices=PRIMITIVES)
    length = group.add_mutually_exclusive_group()
    usual(length, "--steps", "optimiser steps", **COUNT)
    help_text = "instead of --steps: steps and previews for so long, with schedules that pass with the time"
    option(length, "--seconds", help_text, **SECONDS)
    help_text = "density control: how Gaussians are added and removed"
    usual(group, "--strategy", help_text, choices=("mcmc", "adaptive", "none"))
    option(group, "--cap", f"largest number of Gaussians (default: {GROWTH} for each initial point)", **COUNT)
    help_text = f"degree of their colours' harmonics (default: {_USUAL['sh_degree']}, or that of --begin)"
    option(group, "--sh-degree", help_text, type=int, choices=range(5))
    flag: dict[str, Any] = {"action": "store_true", "default": None}
    group.add_argument("--refine-poses", help="also refine the poses of the cameras", **flag)
    group.add_argument("--refine-end-poses", help="also refine the poses at the end of rolling shutters", **flag)
    help_text = "also refine focal lengths and principal points; cameras of one calibration share them"
    group.add_argument("--refine-intrinsics", help=help_text, **flag)
    help_text = "also refine the coefficients of lenses; pinholes without any get k1 and k2"
    group.add_argument("--refine-lenses", help=help_text, **flag)
    help_text = "fit an affine map of each photograph's colours, for cameras with automatic exposure (default: off)"
    group.add_argument("--exposures", action=argparse.BooleanOptionalAction, default=None, help=help_text)
    help_text = "a scene to begin with, instead of the points; sample:vase comes with Lumigrad"
    option(group, "--begin", help_text, type=scene_path, metavar="FILE")
    usual(group, "--seed", "random seed", type=int)
    option(group, "--every", "steps between previews (default: a tenth of all, or of the time)", **COUNT)
    help_text = (
        "steps between snapshots on a worker with a spool, which let the fit continue after a crash (default: none)"
    )
    option(group, "--snapshot-every", help_text, **COUNT)
    option(group, "--logdir", "folder to write metrics for TensorBoard to", type=written_folder, metavar="DIR")


def complete(arguments: argparse.Namespace, resumed: Checkpoint | None) -> None:
    """Fills in defaults; `arguments.given` are the names of the options that were given.

    Raises:
        InvalidArgument: an option differs from that of the resumed fit.
    """
    arguments.given = {name for name, value in vars(arguments).items() if value is not None}
    for name, had in _resumed_options(resumed).items() if resumed is not None else ():
        now = getattr(arguments, name)
        if name in arguments.given and now != had:
            expected = "none" if had is None else had
            text = f"expected {expected}, as in the fit that is resumed, got {now}"
            raise InvalidArgument.of(name, f"{text}; leave it out, or leave --resume out to begin a new fit")
    for name, value in _USUAL.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def check_begin(arguments: argparse.Namespace, begin: Gaussians | Spheres) -> None:
    """Raises InvalidArgument for a given option that does not apply to the primitives with which a fit begins."""
    given = arguments.given
    if not isinstance(begin, Gaussians):
        for name in given.intersection(_OF_GAUSSIANS):
            raise InvalidArgument.of(name, "belongs to Gaussians, but spheres are fitted; leave it out")
    if arguments.begin is None:
        return
    kind = "gaussians" if isinstance(begin, Gaussians) else "spheres"
    if "kind" in given and arguments.kind != kind:
        raise InvalidArgument.of("kind", f"expected {kind}, as in {arguments.begin}, got {arguments.kind}")
    degree = (begin.sh_degree or 0) if isinstance(begin, Gaussians) else None
    if "sh_degree" in given and arguments.sh_degree != degree:
        text = f"expected {degree}, as in {arguments.begin}, got {arguments.sh_degree}"
        raise InvalidArgument.of("sh_degree", f"{text}; leave it out")


def _resumed_options(checkpoint: Checkpoint) -> dict[str, Any]:
    """Returns the options of the resumed fit, as they would be given."""
    recipe = checkpoint.recipe
    primitives = {primitive: name for name, primitive in PRIMITIVES.items()}
    return {
        "kind": recipe.kind,
        "primitive": primitives[recipe.primitive],
        "refine_poses": recipe.poses,
        "refine_end_poses": recipe.end_poses,
        "refine_intrinsics": recipe.intrinsics,
        "refine_lenses": recipe.lenses,
        "max_size": checkpoint.size,
        "hold_out": checkpoint.hold_out,
        "steps": None if recipe.seconds else recipe.steps,
        "seconds": recipe.seconds or None,
        "snapshot_every": recipe.snapshot_every or None,
        **{name: getattr(recipe, name) for name in (*_OF_GAUSSIANS, "exposures", "seed")},
    }
