"""The recipe of a fit: options and schedule, and the checkpoint from which it resumes."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from lumigrad.client.base.replacing import replaced
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.background import Background
from lumigrad.client.fitting.evaluation import Scores
from lumigrad.client.fitting.pacing import BySeconds, BySteps, Pacing
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.formats.beside import Offset
from lumigrad.client.settings.gaussians import Primitive, near_for
from lumigrad.client.training.options import AdaptiveDensity, Loss, Mcmc, Rate

Kind = Literal["gaussians", "spheres"]
Strategy = Literal["mcmc", "adaptive", "none"]
# The weight of normal consistency is that of Huang et al. (2024) for all scenes. Their distortion uses squared
# differences of depths in clip space, ours differences in scene units, so our weight is for a region of radius 1 around
# the cameras. Both losses begin once there is a surface, as in the authors' code.
_NORMAL, _DISTORTION, _SURFACE_START = 0.05, 0.05, 1 / 5
# More weight on similarity and less noise than in the papers; docs/training.md shows the effect.
_L1, _DSSIM = 0.7, 0.3
# Weight and noise of MCMC depend on the unit of length: these are for a region of radius 6 around the cameras, like
# that of the captures on which they were found.
_NOISE, _REGULARISER, _USUAL_EXTENT = 1e5, 0.01, 6.0
# Workers accept no more noise.
_MOST_NOISE = 1e12
# The weight of alpha for transparent photographs: emptiness counts half as much as colours.
_ALPHA = 0.5
# Rates of exposures, as in Inria's code.
_EXPOSURES = 1e-3, 1e-4
# Rates of camera motions: radians and scene units per step; less in a small scene, where such steps would be large.
_POSES = 1e-4, 1e-6
# Rates of intrinsics, in units of the focal length, and of coefficients of lenses.
_INTRINSICS = 1e-4, 1e-6
_LENSES = 2e-4, 2e-6


@dataclass(frozen=True)
class Schedule:
    """Chooses the view of each step of a training whose views are the photographs, then the photographs at half size.

    Attributes:
        photographs: number of photographs.
        coarse: number of first steps, at pace 1, that use photographs at half size.
        seed: seed of the order.
    """

    photographs: int
    coarse: int
    seed: int

    def shots(self, fitted: Sequence[Shot]) -> list[Shot]:
        """Returns the training's views."""
        return [*fitted, *(shot.halved for shot in fitted)] if self.coarse else list(fitted)

    def views(self, first: int, count: int, pace: float = 1.0) -> list[list[int]]:
        """Returns the views of `count` steps from step `first` on, using each photograph once before any is repeated.

        `pace` is the speed of the schedules, see `Trainer.steps`.
        """
        return [[self._view(step, step * pace < self.coarse)] for step in range(first, first + count)]

    def _view(self, step: int, is_coarse: bool) -> int:
        epoch, place = divmod(step, self.photographs)
        order = list(range(self.photographs))
        random.Random(f"{self.seed}:{epoch}").shuffle(order)
        return order[place] + (self.photographs if is_coarse else 0)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of a fit.

    Attributes:
        kind: "gaussians" or "spheres".
        primitive: for Gaussians: "volume", or "surfel" for flat ones.
        extent: radius of the region around the cameras, or the distance of the scene if that is more, scene units.
        steps: number of steps, each on one photograph; with a time budget, the number of steps of the schedules.
        seconds: the time budget, seconds; 0: none.
        sh_degree: largest degree of spherical harmonics; degrees are added one by one.
        strategy: density control of Gaussians: "mcmc", "adaptive", or "none".
        cap: maximum number of Gaussians.
        poses: also refine the cameras' poses.
        end_poses: also refine the poses at the end of rolling shutters independently.
        intrinsics: also refine focal lengths and principal points.
        lenses: also refine the coefficients of lenses.
        exposures: also fit an affine map of the colours of each photograph.
        coarse: number of first steps on photographs at half the width and height.
        seed: seed of all random choices.
        snapshot_every: steps between snapshots, which need a worker with a spool; 0: none.
        background: the background behind the scene.
        offset: the offset subtracted from a data set's coordinates that are far from 0; None: none.
    """

    kind: Kind = "gaussians"
    primitive: Primitive = "volume"
    extent: float = 1.0
    steps: int = 7000
    seconds: float = 0.0
    sh_degree: int = 3
    strategy: Strategy = "mcmc"
    cap: int = 0
    poses: bool = False
    end_poses: bool = False
    intrinsics: bool = False
    lenses: bool = False
    exposures: bool = False
    coarse: int = 0
    seed: int = 0
    snapshot_every: int = 0
    background: Background = field(default_factory=Background)
    offset: Offset | None = None

    @property
    def loss(self) -> Loss:
        """The loss; MCMC adds regularisers, which shrink faint and small Gaussians."""
        alpha = _ALPHA if self.background.is_transparent else 0.0
        if self.kind == "spheres":
            return Loss(alpha=alpha)
        regulariser = _REGULARISER if self.moves else 0.0
        of_surface: dict[str, Any] = {}
        if self.is_flat:
            of_surface = {"normal": _NORMAL, "distortion": _DISTORTION / self.extent}
            of_surface["surface_start"] = int(self.steps * _SURFACE_START)
        of_scales = regulariser * _USUAL_EXTENT / self.extent
        return Loss(l1=_L1, dssim=_DSSIM, alpha=alpha, opacity=regulariser, scale=of_scales, **of_surface)

    @property
    def looks(self) -> dict[str, Any]:
        """The settings of renderings, besides the primitive."""
        of_gaussians = {"near": near_for(self.extent)} if self.kind == "gaussians" else {}
        return {"background": self.background.color, **of_gaussians}

    @property
    def noun(self) -> str:
        """The name of the primitives, for people."""
        return "Gaussians" if self.kind == "gaussians" else "spheres"

    @property
    def compared(self) -> str:
        """The pictures that the PSNR of a step refers to, in words."""
        return f"fitted photographs{', opaque parts' if self.background.is_transparent else ''}"

    @property
    def is_flat(self) -> bool:
        """Whether surfels are fitted."""
        return self.kind == "gaussians" and self.primitive == "surfel"

    @property
    def refines_cameras(self) -> bool:
        """Whether any camera parameters are refined."""
        return self.poses or self.end_poses or self.intrinsics or self.lenses

    @property
    def moves(self) -> bool:
        """Whether noise moves the Gaussians, which is the case only in MCMC."""
        return self.kind == "gaussians" and self.strategy == "mcmc"

    @property
    def density(self) -> AdaptiveDensity | Mcmc | None:
        """Density control; its schedule is scaled to the number of steps."""
        if self.kind == "spheres" or self.strategy == "none":
            return None
        start, every = max(self.steps // 60, 10), max(min(100, self.steps // 70), 5)
        if self.strategy == "mcmc":
            # The noise of a mean is its rate, in scene units, times the covariance, in their squares.
            noise = min(_NOISE * (_USUAL_EXTENT / self.extent) ** 2, _MOST_NOISE)
            return Mcmc(cap=self.cap, start=start, stop=self.steps * 6 // 7, every=every, noise=noise)
        return AdaptiveDensity(
            start=max(self.steps // 14, 10),
            stop=self.steps // 2,
            every=every,
            reset_every=max(self.steps // 5, 100),
            max_count=self.cap,
        )

    def schedule(self, photographs: int) -> Schedule:
        """Returns the schedule of photographs for the steps."""
        return Schedule(photographs, self.coarse, self.seed)

    def pacing(self, every: int | None, used: float = 0.0, keep: Callable[[float], None] | None = None) -> Pacing:
        """Returns the pacing of the fit, which begins now; see `BySeconds` for the arguments."""
        if not self.seconds:
            return BySteps(self.steps, every)
        return BySeconds(self.seconds, self.steps, every, used, keep)

    def trainer_options(self) -> dict[str, Any]:
        """Returns the arguments of `Client.trainer`."""
        is_gaussians = self.kind == "gaussians"
        first, last = (rate * min(1.0, self.extent) for rate in _POSES)
        poses = Rate(first, last, self.steps)
        of_gaussians: dict[str, Any] = {"sh_degree_every": max(self.steps // 14, 1), "primitive": self.primitive}
        return {
            "loss": self.loss,
            "density": self.density,
            # Twice the steps let the rates of means fall only to a tenth: at a hundredth, later steps would hardly move
            # the Gaussians.
            "total_steps": 2 * self.steps if is_gaussians else self.steps,
            "refine_poses": poses if self.poses else None,
            "refine_end_poses": poses if self.end_poses else None,
            "refine_intrinsics": Rate(*_INTRINSICS, self.steps) if self.intrinsics else None,
            "refine_lenses": Rate(*_LENSES, self.steps) if self.lenses else None,
            "refine_exposures": Rate(*_EXPOSURES, self.steps) if self.exposures else None,
            "seed": self.seed,
            "snapshot_every": self.snapshot_every,
            **self.looks,
            **(of_gaussians if is_gaussians else {}),
        }


@dataclass(frozen=True)
class Checkpoint:
    """The arguments of `Client.resume_trainer`, and the settings of the fit.

    Attributes:
        training_id: id of the training on the worker.
        lease: the secret with which the training can be resumed, so only the file's owner may read it.
        size: maximum width and height of photographs, pixels.
        hold_out: which photographs are held out, see `divide`.
        recipe: the settings of the fit.
        before: scores of the initial scene.
        used: how much of the time budget was used, seconds.
    """

    training_id: str
    lease: str
    size: int
    hold_out: int | None
    recipe: Recipe
    before: Scores
    used: float = 0.0

    def write(self, path: Path) -> None:
        """Replaces the file atomically."""
        with replaced(path, mode=0o600) as new:
            new.write_text(json.dumps(asdict(self), indent=2))

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """Reads the checkpoint of a stopped fit.

        Raises:
            InvalidArgument: the file is missing or invalid.
        """
        try:
            values = json.loads(path.read_text())
            background = values["recipe"].pop("background")
            background = Background(**{**background, "color": tuple(background["color"])})
            offset = values["recipe"].pop("offset", None)
            place = None if offset is None else tuple(offset)
            recipe = Recipe(**values["recipe"], background=background, offset=place)
            parts = {"recipe": recipe, "before": Scores(**values["before"])}
            return Checkpoint(**{**values, **parts})
        except FileNotFoundError:
            scene = path.parent.with_suffix(".ply")
            begun = f"; to go on from the finished scene, name it: --begin {scene}" if scene.is_file() else ""
            text = f"expected {path} of a fit that was stopped, got no such file; leave --resume out{begun}"
            raise InvalidArgument.of("resume", text) from None
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument.of("resume", f"{path} is not a checkpoint of `lumigrad fit`: {error}") from error
