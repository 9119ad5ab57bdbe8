"""`lumigrad fit`: fits a scene to photographs."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lumigrad.client.client import Client
from lumigrad.client.commands.options import COUNT, FILE, FOLDER, add_connection, connect, count, ending, option
from lumigrad.client.commands.scene_file import load
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.errors import InvalidArgument, TrainingHeld, TrainingLost
from lumigrad.client.fitting.beginning import Shot, divide, gaussians_at, shots_of, spheres_at
from lumigrad.client.fitting.evaluation import Scores, exposures_nearby, pictures, samples, side_by_side
from lumigrad.client.fitting.fit import Journal, fit, stop_on_interrupt
from lumigrad.client.fitting.recipe import Checkpoint, Recipe
from lumigrad.client.pictures import write_image
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import json_text
from lumigrad.client.training.trainer import Trainer
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# Default of --cap: Gaussians for each initial point.
_GROWTH = 3
# Photographs in comparison.jpg.
_COMPARED = 3
_DESCRIPTION = """\
Fits Gaussians, or spheres, to posed photographs with initial points: a COLMAP reconstruction, nerfstudio's
transforms.json, or Inria's cameras.json. Photographs travel to the worker once; it renders, compares, differentiates
and steps. Every eighth photograph is held out, to evaluate the fit.

A folder beside the scene (scene.fit/) has previews, comparison.jpg, report.json with the scores, and a checkpoint for
--resume. Ctrl-C ends the fit early and writes a valid scene; a second Ctrl-C ends it at once.

examples:
  lumigrad fit capture/ -o scene.ply
  lumigrad fit capture/ -o scene.ply --steps 30000 --cap 500000 --logdir runs/1
  lumigrad fit capture/ -o scene.ply --resume                      continue after Ctrl-C
  lumigrad fit capture/ -o spheres.ply --kind spheres --steps 2000
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("dataset", metavar="DATASET", type=Path, help="folder of a data set, or its .json file")
    help_text = "the scene: a .ply"
    parser.add_argument("-o", "--output", required=True, type=ending(".ply"), metavar="FILE", help=help_text)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--resume", action="store_true", help="continue a fit that was stopped")
    _add_recipe(parser.add_argument_group("fit"))
    data = parser.add_argument_group("data")
    option(data, "--images", "folder of the photographs (default: the usual one)", **FOLDER)
    option(data, "--max-size", "largest side of a photograph", 1600, dest="size", type=count, metavar="PIXELS")
    option(data, "--hold-out", "hold out every Nth photograph; 0: none", 8, type=int, metavar="N")
    add_connection(parser)


def _run(arguments: argparse.Namespace) -> int:
    output = sys.stderr if arguments.json else sys.stdout
    folder = arguments.output.with_suffix(".fit")
    checkpoint = Checkpoint.read(folder / "checkpoint.json") if arguments.resume else None
    data = arguments if checkpoint is None else checkpoint
    capture = Capture.load(arguments.dataset, images=arguments.images)
    fitted, held_out = divide(shots_of(capture, data.size), data.hold_out)
    with connect(arguments) as client, stop_on_interrupt() as stopped:
        if checkpoint is None:
            trainer, recipe, before = _begin(client, arguments, capture, fitted, held_out)
        else:
            trainer, recipe, before = _resumed(client, checkpoint, fitted), checkpoint.recipe, checkpoint.before
        folder.mkdir(parents=True, exist_ok=True)
        lease = trainer.training_id, trainer.lease
        Checkpoint(*lease, data.size, data.hold_out, recipe, before).write(folder / "checkpoint.json")
        print(f"{len(fitted)} photographs to fit, {len(held_out)} held out, {recipe.steps} steps", file=output)
        began, first = time.perf_counter(), trainer.step_number
        every = arguments.every or max(recipe.steps // 10, 1)
        with Journal(folder, first, recipe.steps, len(fitted), arguments.logdir) as journal:
            scene = fit(client, trainer, recipe.steps, every, held_out, arguments.output, journal, stopped)
        seconds, done = time.perf_counter() - began, trainer.step_number
        trainer.close(finish=done >= recipe.steps)
        if done >= recipe.steps:
            # There is nothing to resume.
            (folder / "checkpoint.json").unlink(missing_ok=True)
        after = _measure(client, scene, held_out, fitted, folder)
    report: dict[str, Any] = {
        "steps": done,
        "resumed_from": first,
        "seconds": seconds,
        "steps_per_second": (done - first) / seconds,
        "count": len(scene),
    }
    report |= {"held_out": asdict(after), "begin": asdict(before), "recipe": asdict(recipe)}
    (folder / "report.json").write_text(json.dumps(report, indent=2))
    if arguments.json:
        print(json_text({"output": str(arguments.output), **report}))
    rate = f"{done} of {recipe.steps} steps, {seconds:.0f} s, {report['steps_per_second']:.1f} steps/s"
    print(f"{rate}; {len(scene):,} {recipe.kind} in {arguments.output}", file=output)
    print(f"held-out photographs: {before}, now {after}", file=output)
    exposed = f"{after.exposed_psnr:.2f} dB with neighbouring exposures"
    print(f"{exposed}, {after.matched_psnr:.2f} dB with colours matched", file=output)
    print(f"pictures and report in {folder}/", file=output)
    if done < recipe.steps:
        print("stopped; --resume continues it while the worker keeps the training", file=sys.stderr)
    return 0


def _begin(
    client: Client, arguments: argparse.Namespace, capture: Capture, fitted: list[Shot], held_out: list[Shot]
) -> tuple[Trainer, Recipe, Scores]:
    """Starts a training; returns it with its recipe and the initial scores."""
    recipe, begin = _beginning(arguments, capture)
    before = Scores.of(pictures(client, begin, held_out), held_out)
    cameras, targets = [shot.camera for shot in fitted], [shot.target for shot in fitted]
    try:
        return client.trainer(begin, cameras, targets, **recipe.trainer_options()), recipe, before
    except TrainingHeld as error:
        advice = "a fit of the same photographs is in progress or was killed: --resume continues it"
        raise InvalidArgument.of("dataset", f"{advice}; {error}") from error


def _beginning(arguments: argparse.Namespace, capture: Capture) -> tuple[Recipe, Gaussians | Spheres]:
    begin: Gaussians | Spheres
    if arguments.begin is not None:
        begin = load(arguments.begin)
    elif capture.points is None:
        raise InvalidArgument.of(
            "dataset",
            f"expected initial points in {arguments.dataset}, got none; name a scene to begin with: --begin FILE",
        )
    elif arguments.kind == "spheres":
        begin = spheres_at(capture.points)
    else:
        begin = gaussians_at(capture.points, arguments.sh_degree)
    recipe = Recipe(
        kind="gaussians" if isinstance(begin, Gaussians) else "spheres",
        steps=arguments.steps,
        sh_degree=arguments.sh_degree,
        strategy=arguments.strategy,
        cap=arguments.cap or _GROWTH * len(begin),
        poses=arguments.refine_poses,
        exposures=arguments.exposures,
        seed=arguments.seed,
        snapshot_every=arguments.snapshot_every or 0,
    )
    return recipe, begin


def _resumed(client: Client, checkpoint: Checkpoint, fitted: list[Shot]) -> Trainer:
    targets = [shot.target for shot in fitted]
    try:
        return client.resume_trainer(checkpoint.training_id, checkpoint.lease, targets=targets)
    except TrainingLost as error:
        raise InvalidArgument.of(
            "resume",
            "the worker no longer has this training: start again from the saved scene, with --begin FILE "
            "(a worker keeps a training for `--training-seconds`, and with `--spool` across its restarts)",
        ) from error


def _measure(client: Client, scene: Gaussians | Spheres, shots: list[Shot], fitted: list[Shot], folder: Path) -> Scores:
    """Scores the scene against the photographs, and writes some of them side by side."""
    rendered = pictures(client, scene, shots)
    shown = samples(shots, _COMPARED)
    columns = [[rendered[index] for index in shown], [shots[index].photograph for index in shown]]
    write_image(folder / "comparison.jpg", side_by_side(columns))
    return Scores.of(rendered, shots, exposures_nearby(client, scene, shots, fitted))


def _add_recipe(group: argparse._ArgumentGroup) -> None:
    option(group, "--kind", "primitives to fit", "gaussians", choices=("gaussians", "spheres"))
    option(group, "--steps", "optimiser steps", 7000, **COUNT)
    help_text = "density control: how Gaussians are added and removed"
    option(group, "--strategy", help_text, "mcmc", choices=("mcmc", "adaptive", "none"))
    option(group, "--cap", f"largest number of Gaussians (default: {_GROWTH} for each initial point)", **COUNT)
    option(group, "--sh-degree", "degree of their colours' harmonics", 3, type=int, choices=range(5))
    group.add_argument("--refine-poses", action="store_true", help="also refine the poses of the cameras")
    help_text = "fit an affine map of each photograph's colours, for cameras with automatic exposure (default: on)"
    group.add_argument("--exposures", action=argparse.BooleanOptionalAction, default=True, help=help_text)
    option(group, "--begin", "a scene to begin with, instead of the points", **FILE)
    option(group, "--seed", "random seed", 0, type=int)
    option(group, "--every", "steps between previews (default: a tenth of all)", **COUNT)
    help_text = (
        "steps between snapshots on a worker with a spool, which let the fit continue after a crash (default: none)"
    )
    option(group, "--snapshot-every", help_text, **COUNT)
    option(group, "--logdir", "folder to write metrics for TensorBoard to", **FOLDER)


command = Command("fit Gaussians or spheres to posed photographs", _add_arguments, _run)
