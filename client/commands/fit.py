"""`lumigrad fit`: fits a scene to photographs."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from lumigrad.client.base.cautions import said
from lumigrad.client.base.counts import counted
from lumigrad.client.base.extras import require
from lumigrad.client.base.replacing import write_text
from lumigrad.client.client import Client
from lumigrad.client.commands.fit_messages import (
    check_photographs,
    plan_text,
    say_axes,
    say_few_points,
    say_results,
    say_weights,
)
from lumigrad.client.commands.fit_options import GROWTH, add_recipe, check_begin, complete, usual
from lumigrad.client.commands.options import FOLDER, add_connection, connect, count, ending, option
from lumigrad.client.commands.scene_file import check_replaced, load
from lumigrad.client.datasets.capture import Capture
from lumigrad.client.datasets.points import Points
from lumigrad.client.errors import InvalidArgument, TrainingHeld, TrainingLost
from lumigrad.client.fitting.background import CHOICES, Background
from lumigrad.client.fitting.beginning import extent_for, gaussians_at, random_points, spheres_at, surfels_at
from lumigrad.client.fitting.cameras import begun, save_refined, shared_calibrations, with_refined
from lumigrad.client.fitting.centring import beginning_in, offset_for, without_offset
from lumigrad.client.fitting.evaluation import Scores, pictures, scored
from lumigrad.client.fitting.first_view import first_view
from lumigrad.client.fitting.fit import Journal, Live, fit, stop_on_interrupt
from lumigrad.client.fitting.memory import check_memory
from lumigrad.client.fitting.outcome import Outcome
from lumigrad.client.fitting.pacing import Pacing
from lumigrad.client.fitting.recipe import Checkpoint, Recipe
from lumigrad.client.fitting.shot import Shot, are_held_out, divide, shots_of
from lumigrad.client.formats.beside import Offset, offset_text
from lumigrad.client.pictures import write_image
from lumigrad.client.settings.gaussians import Primitive
from lumigrad.client.shell.catalog import Command
from lumigrad.client.shell.exits import json_text, say
from lumigrad.client.shell.parser import path_of
from lumigrad.client.training.trainer import Trainer
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import OpenCVModel, SensorModel
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.spheres import Spheres

# How long a fit waits for a worker that is restarted.
_RETRY_S = 60.0
_CHECKPOINT = "checkpoint.json"
# Files that a fit writes into the folder beside the scene, except the checkpoint and the data set of refined cameras.
_RESULTS = re.compile(r"preview_\d{6,}\.jpg|report\.html|report\.json|comparison\.jpg")
_DESCRIPTION = """\
Fits Gaussians, or spheres, to posed photographs: a COLMAP reconstruction, nerfstudio's transforms.json, a Blender scene
of NeRF, Polycam's raw data, or Inria's cameras.json. Photographs travel to the worker once; it renders, compares,
differentiates and steps. Every eighth photograph is held out, to evaluate the fit. Masks that transforms.json names,
or COLMAP's masks/<name of the photograph>.png, are black where a photograph is ignored.

A folder beside the scene (scene.fit/) has report.html with scores and pictures, the same as report.json and
comparison.jpg, previews, and a checkpoint for --resume. Without --resume, a fit with the same output replaces the scene
and these files. Ctrl-C or SIGTERM ends the fit early and writes a valid scene; a second one ends it at once.

examples:
  lumigrad fit capture/ -o scene.ply
  lumigrad fit capture/ -o scene.ply --steps 30000 --cap 500000 --logdir runs/1
  lumigrad fit capture/ -o scene.ply --seconds 60                  in a minute, on any device
  lumigrad fit capture/ -o scene.ply --view                        watch it in a browser
  lumigrad fit capture/ -o scene.ply --resume                      continue after Ctrl-C
  lumigrad fit capture/ -o surfels.ply --primitive surfels         flat Gaussians, for surfaces
  lumigrad fit capture/ -o spheres.ply --kind spheres --steps 2000
"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = _DESCRIPTION
    parser.add_argument("dataset", metavar="DATASET", type=_dataset, help="folder of a data set, or its .json file")
    help_text = "the scene: a .ply"
    parser.add_argument("-o", "--output", required=True, type=ending(".ply"), metavar="FILE", help=help_text)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--resume", action="store_true", help="continue a fit that was stopped")
    parser.add_argument("--view", action="store_true", help="show the scene in a browser while it is fitted")
    add_recipe(parser.add_argument_group("fit"))
    data = parser.add_argument_group("data")
    option(data, "--images", "folder of the photographs (default: the usual one)", **FOLDER)
    usual(data, "--max-size", "largest side of a photograph", type=count, metavar="PIXELS")
    help_text = "what is behind the subject: white or black; image: the photographs show nothing but the scene; auto: "
    help_text += "nothing if they are transparent, else the colour of their edges if it is one, else as image"
    option(data, "--background", help_text, "auto", dest="backdrop", choices=("auto", *CHOICES, "image"))
    help_text = (
        "hold out every Nth photograph; 0: none (default: those that the data set names for that, else every 8th)"
    )
    option(data, "--hold-out", help_text, type=_nth, metavar="N")
    add_connection(parser)


def _dataset(text: str) -> Path:
    """Parses the path of a data set."""
    if text.startswith("sample:") and not Path(text).exists():
        raise argparse.ArgumentTypeError(f"expected photographs, got {text}; `lumigrad sample capture DIR` makes some")
    return path_of(text)


def _nth(text: str) -> int:
    """Parses the number of --hold-out."""
    if not text.isdecimal() or int(text) == 1:
        raise argparse.ArgumentTypeError(f"expected 0, or a whole number >= 2, got {text}")
    return int(text)


@dataclass(frozen=True)
class _Photographs:
    """A data set in the frame of the fit, and which of its photographs are fitted and held out."""

    capture: Capture
    offset: Offset | None
    shots: Sequence[Shot]
    background: Background
    fitted: list[Shot]
    held_out: list[Shot]

    @staticmethod
    def of(arguments: argparse.Namespace, checkpoint: Checkpoint | None) -> _Photographs:
        """Reads a data set as the arguments, or those of the fit that is resumed, require."""
        capture, offset = _data(arguments, checkpoint)
        if checkpoint is None:
            size, hold_out, backdrop = arguments.max_size, arguments.hold_out, arguments.backdrop
        else:
            size, hold_out, backdrop = checkpoint.size, checkpoint.hold_out, checkpoint.recipe.background
        shots, background = shots_of(capture, size, backdrop)
        return _Photographs(capture, offset, shots, background, *divide(shots, hold_out, capture.split))


def _run(arguments: argparse.Namespace) -> int:
    if arguments.view:
        # A missing extra is reported before the photographs are read.
        require("viser", "viewer", "fit --view")
    if arguments.logdir is not None:
        # Raises an error where torch, which that package imports, would end the process: its MKL needs the folder.
        os.getcwd()
        require("tensorboardX", "fit", "metrics for TensorBoard")
    check_replaced(arguments.output)
    folder = arguments.output.with_suffix(".fit")
    if folder.exists() and not folder.is_dir():
        text = f"expected no file {folder}, where the folder of the fit is; name another scene, or move the file"
        raise InvalidArgument.of("output", text)
    checkpoint = Checkpoint.read(folder / _CHECKPOINT) if arguments.resume else None
    complete(arguments, checkpoint)
    data = _Photographs.of(arguments, checkpoint)
    with _connected(arguments) as client, stop_on_interrupt() as stopped:
        if checkpoint is None:
            trainer, checkpoint = _started(arguments, client, data, folder)
        else:
            trainer = _resumed(client, checkpoint, data.fitted)
        recipe, first = checkpoint.recipe, trainer.step_number
        plan = plan_text(recipe, data.capture, data.shots, data.fitted, data.held_out)
        print(plan, file=sys.stderr if arguments.json else sys.stdout)
        began = time.perf_counter()
        pacing = recipe.pacing(arguments.every, checkpoint.used, partial(_keep, checkpoint, folder))
        scene = _fitted_scene(arguments, client, trainer, recipe, pacing, data, stopped)
        seconds, done = time.perf_counter() - began, trainer.step_number
        spent, is_over = pacing.text(done), pacing.is_over(done)
        fitted, held_out = _refined(trainer, recipe, data, folder)
        if is_over:
            # Nothing is left to resume; a fit that ends here leaves no checkpoint of a training that has ended.
            (folder / _CHECKPOINT).unlink(missing_ok=True)
        trainer.close(finish=is_over)
        outcome = Outcome.of(client, scene, held_out, fitted, recipe.looks)
    is_held_out = are_held_out(held_out, fitted)
    report = _report(outcome, checkpoint, recipe, first, done, seconds, len(scene), is_held_out=is_held_out)
    duration = "" if recipe.seconds else f", {seconds:.0f} s"
    rate = f"{spent}{duration}, {report['steps_per_second']:.1f} steps/s; {counted(len(scene), recipe.noun)}"
    facts = _facts(rate, recipe, checkpoint.before, outcome.scores, is_held_out=is_held_out)
    _write_results(arguments, folder, outcome, report, facts)
    say_results(arguments, recipe, facts, outcome.scores, not is_over)
    return 0


def _started(
    arguments: argparse.Namespace, client: Client, data: _Photographs, folder: Path
) -> tuple[Trainer, Checkpoint]:
    """Starts a training, whose checkpoint replaces the results of an earlier fit in the folder."""
    recipe, begin = _beginning(arguments, data.capture, data.background, data.offset)
    # Here all options have been checked, and Ctrl-C still comes in time.
    _announce_replacement(arguments, folder)
    trainer, before = _begin(client, recipe, begin, data.fitted, data.held_out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path in _results(folder):
            path.unlink()
        first_view(data.capture, data.background).save(arguments.output)
        made = Checkpoint(trainer.training_id, trainer.lease, arguments.max_size, arguments.hold_out, recipe, before)
        made.write(folder / _CHECKPOINT)
    except BaseException:
        # Without a checkpoint, the training could not be resumed, nor its scene trained again.
        trainer.close()
        raise
    return trainer, made


def _fitted_scene(
    arguments: argparse.Namespace,
    client: Client,
    trainer: Trainer,
    recipe: Recipe,
    pacing: Pacing,
    data: _Photographs,
    stopped: threading.Event,
) -> Gaussians | Spheres:
    """Fits the scene, shows the progress and returns the scene as it is saved."""
    folder, count = arguments.output.with_suffix(".fit"), len(data.fitted)
    with (
        # The page opens before the progress bar, because its message would run into the bar's line.
        _page(client, trainer, recipe, pacing, data.capture, arguments) as live,
        Journal(folder, trainer.step_number, pacing, count, recipe, arguments.logdir) as journal,
    ):
        schedule, output = recipe.schedule(count), arguments.output
        return fit(client, trainer, recipe, schedule, pacing, data.held_out, output, journal, stopped, live)


def _refined(trainer: Trainer, recipe: Recipe, data: _Photographs, folder: Path) -> tuple[list[Shot], list[Shot]]:
    """Returns the fitted and the held-out photographs with refined cameras, and saves these, if they are refined."""
    if not recipe.refines_cameras:
        return data.fitted, data.held_out
    found = trainer.cameras()[: len(data.fitted)]
    fitted, held_out = (with_refined(shots, data.fitted, found) for shots in (data.fitted, data.held_out))
    save_refined(data.capture, [*held_out, *fitted], folder, data.offset)
    return fitted, held_out


def _write_results(
    arguments: argparse.Namespace, folder: Path, outcome: Outcome, report: dict[str, Any], facts: dict[str, str]
) -> None:
    """Writes the report and the comparison beside the scene; with --json, prints the report too."""
    write_text(folder / "report.json", json.dumps(report, indent=2))
    write_image(folder / "comparison.jpg", outcome.comparison)
    outcome.page.write(folder / "report.html", arguments.output.name, facts)
    if arguments.json:
        print(json_text({"output": str(arguments.output), **report}))


def _report(
    outcome: Outcome,
    checkpoint: Checkpoint,
    recipe: Recipe,
    first: int,
    done: int,
    seconds: float,
    primitives: int,
    *,
    is_held_out: bool,
) -> dict[str, Any]:
    """Returns the content of report.json for the steps from `first` to `done`; scores are of held-out photographs."""
    return {
        "steps": done,
        "resumed_from": first,
        "seconds": seconds,
        "steps_per_second": (done - first) / seconds,
        "count": primitives,
        "held_out" if is_held_out else "fitted": asdict(outcome.scores),
        "begin": asdict(checkpoint.before),
        "photographs": [asdict(score) for score in outcome.photographs],
        "recipe": asdict(recipe),
    }


def _facts(fitting: str, recipe: Recipe, before: Scores, after: Scores, *, is_held_out: bool) -> dict[str, str]:
    """Returns the facts of a report by name, as text."""
    scored = "held-out photographs" if is_held_out else "fitted photographs, since none is held out"
    parts = f" (opaque parts: {after.opaque_psnr:.2f} dB)" if recipe.background.is_transparent else ""
    return {
        "fit": f"{fitting}; background: {recipe.background}",
        scored: f"{after}{parts}; before the fit {before}",
        f"{scored}, colours matched": f"{after.exposed_psnr:.2f} dB to the photographs beside each, "
        f"{after.matched_psnr:.2f} dB to each itself",
        "coordinates": offset_text(recipe.offset),
    }


def _keep(checkpoint: Checkpoint, folder: Path, used: float) -> None:
    """Records how much of a time budget was used, for `--resume`."""
    replace(checkpoint, used=used).write(folder / _CHECKPOINT)


def _connected(arguments: argparse.Namespace) -> Client:
    """Returns a client that waits for restarts of the worker during the fit; raises soon if there is no worker now."""
    with connect(arguments) as client:
        client.info()
    return connect(arguments, retry_s=_RETRY_S)


def _data(arguments: argparse.Namespace, checkpoint: Checkpoint | None) -> tuple[Capture, Offset | None]:
    """Reads the data set; returns it in the frame of the fit, and the offset subtracted from its coordinates."""
    refines_lenses = arguments.refine_lenses if checkpoint is None else checkpoint.recipe.lenses
    # A fit moves what lies far from 0, so that nothing is lost.
    with said():
        capture = Capture.load(arguments.dataset, images=arguments.images, sensors=refines_lenses)
    check_photographs(arguments, capture)
    offset = offset_for(capture, arguments.begin) if checkpoint is None else checkpoint.recipe.offset
    capture = without_offset(capture, offset)
    say_axes(arguments, capture)
    return capture, offset


def _announce_replacement(arguments: argparse.Namespace, folder: Path) -> None:
    """Prints on standard error what a new fit will replace, if anything."""
    scene: Path = arguments.output
    resumable = (folder / _CHECKPOINT).exists()
    replaced = [str(scene)] if scene.exists() else []
    if resumable or _results(folder):
        replaced.append(f"the results of a fit in {folder}")
    if replaced:
        hint = "; --resume continues that fit while the worker has it" if resumable else ""
        say(f"will replace {' and '.join(replaced)}{hint}")


def _results(folder: Path) -> list[Path]:
    """Returns the files in the folder that a fit has written."""
    return [path for path in folder.glob("*") if _RESULTS.fullmatch(path.name) and path.is_file()]


def _page(
    client: Client, trainer: Trainer, recipe: Recipe, pacing: Pacing, capture: Capture, arguments: argparse.Namespace
) -> AbstractContextManager[Live | None]:
    """Returns a context in which a page shows the fit; without --view, one that does nothing."""
    if not arguments.view:
        return nullcontext()
    from lumigrad.client.commands.fit_page import watched

    return watched(client, trainer, recipe, pacing, capture, arguments.output.name)


def _begin(
    client: Client, recipe: Recipe, begin: Gaussians | Spheres, fitted: list[Shot], held_out: list[Shot]
) -> tuple[Trainer, Scores]:
    """Starts a training; returns it with the initial scores."""
    shots = recipe.schedule(len(fitted)).shots(fitted)
    check_memory(shots, begin, client.info().target_image_bytes)
    before = scored(pictures(client, begin, held_out, recipe.looks), held_out)
    weighted: dict[str, float] = {}
    cameras = [shot.camera for shot in begun(shots, recipe)]
    images = [partial(shot.target_image, weighted) for shot in shots]
    calibrations = shared_calibrations(fitted, len(shots)) if recipe.intrinsics or recipe.lenses else None
    try:
        options = recipe.trainer_options()
        trainer = client.trainer(begin, cameras, images, calibrations=calibrations, **options)
    except TrainingHeld as error:
        advice = "a fit of the same photographs is in progress or was killed: --resume continues it"
        raise InvalidArgument.of("dataset", f"{advice}; {error}") from error
    say_weights(weighted, fitted)
    return trainer, before


def _beginning(
    arguments: argparse.Namespace, capture: Capture, background: Background, offset: Offset | None
) -> tuple[Recipe, Gaussians | Spheres]:
    begin: Gaussians | Spheres
    if arguments.begin is not None:
        begin = beginning_in(load(arguments.begin), arguments.begin, capture, offset)
    else:
        points = capture.points
        if points is None:
            points = random_points(capture, arguments.seed)
            say(
                f"{arguments.dataset} has no initial points: the fit begins with {len(points):,} random "
                "points where the cameras look; to begin with a scene, pass --begin FILE",
            )
        begin = _begun_at(points, arguments)
    check_begin(arguments, begin)
    is_gaussians = isinstance(begin, Gaussians)
    primitive = _primitive(arguments, begin, capture)
    if arguments.refine_end_poses:
        _check_shutters(capture)
    # Beginning at half the size would blur a given scene, and refined poses belong to views of one size.
    moves = arguments.refine_poses or arguments.refine_end_poses
    is_coarse = is_gaussians and arguments.begin is None and not moves
    recipe = Recipe(
        kind="gaussians" if is_gaussians else "spheres",
        primitive=primitive,
        extent=extent_for([view.camera for view in capture.views], begin),
        steps=arguments.steps,
        seconds=arguments.seconds or 0.0,
        sh_degree=(begin.sh_degree or 0) if isinstance(begin, Gaussians) else 0,
        strategy=arguments.strategy,
        cap=arguments.cap or GROWTH * len(begin),
        poses=arguments.refine_poses,
        end_poses=arguments.refine_end_poses,
        intrinsics=arguments.refine_intrinsics,
        lenses=arguments.refine_lenses,
        exposures=arguments.exposures,
        coarse=arguments.steps * 2 // 5 if is_coarse else 0,
        seed=arguments.seed,
        snapshot_every=arguments.snapshot_every or 0,
        background=background,
        offset=offset,
    )
    say_few_points(arguments, recipe, len(begin))
    return recipe, begin


def _begun_at(points: Points, arguments: argparse.Namespace) -> Gaussians | Spheres:
    """Returns a primitive of the fitted kind for each point."""
    if arguments.kind == "spheres":
        return spheres_at(points)
    if arguments.primitive == "surfels":
        return surfels_at(points, arguments.sh_degree, arguments.seed)
    return gaussians_at(points, arguments.sh_degree)


def _primitive(arguments: argparse.Namespace, begin: Gaussians | Spheres, capture: Capture) -> Primitive:
    """Returns the kind of the Gaussians; raises InvalidArgument if the initial scene or a camera does not suit it."""
    is_flat = isinstance(begin, Gaussians) and begin.is_flat
    if arguments.primitive is not None:
        if not isinstance(begin, Gaussians):
            raise InvalidArgument.of("primitive", "belongs to Gaussians, but spheres are fitted; leave it out")
        if (arguments.primitive == "surfels") != is_flat:
            found = "surfels" if is_flat else "volumes"
            raise InvalidArgument.of("begin", f"expected a file of {arguments.primitive}, got {found}")
    lenses = [view.name for view in capture.views if not _is_plain_pinhole(view.camera)]
    if lenses and (is_flat or isinstance(begin, Spheres)):
        name, noun = ("primitive", "surfels") if is_flat else ("kind", "spheres")
        text = f"{noun} need pinholes without distortion, and {lenses[0]} has another lens; undistort the photographs"
        raise InvalidArgument.of(name, f"{text} (colmap image_undistorter), and leave --refine-lenses out")
    return "surfel" if is_flat else "volume"


def _check_shutters(capture: Capture) -> None:
    """Raises InvalidArgument unless all cameras have a pose at the end of the exposure, which can be refined."""
    for view in capture.views:
        model = view.camera.model
        if not isinstance(model, SensorModel) or model.shutter == "global":
            text = f"expected cameras with a rolling shutter, and {view.name} has a global one"
            raise InvalidArgument.of("refine_end_poses", f"{text}; leave it out, or pass --refine-poses")


def _is_plain_pinhole(camera: Camera) -> bool:
    model = camera.model
    return isinstance(model, OpenCVModel) and model.projection == "pinhole" and not any(model.distortion)


def _resumed(client: Client, checkpoint: Checkpoint, fitted: list[Shot]) -> Trainer:
    shots = checkpoint.recipe.schedule(len(fitted)).shots(fitted)
    images = [shot.target_image for shot in shots]
    try:
        return client.resume_trainer(checkpoint.training_id, checkpoint.lease, target_images=images)
    except TrainingLost as error:
        raise InvalidArgument.of(
            "resume",
            "the worker no longer has this training: start again from the saved scene, with --begin FILE "
            "(a worker keeps a training for `--training-seconds`, and with `--spool` across its restarts)",
        ) from error


command = Command("fit Gaussians or spheres to posed photographs", _add_arguments, _run)
