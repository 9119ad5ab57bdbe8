"""The recipe of a fit: options and schedule, and the checkpoint by which it goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from lumigrad.client.errors import InvalidArgument
from lumigrad.client.fitting.evaluation import Scores
from lumigrad.client.training.options import AdaptiveDensity, Loss, Mcmc, Rate

Kind = Literal["gaussians", "spheres"]
Strategy = Literal["mcmc", "adaptive", "none"]
# Inria's trainer has these for its exposures.
_EXPOSURES = 1e-3, 1e-4
# Of a motion of the camera: radians and scene units per step at first.
_POSES = 1e-4, 1e-6


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What is fitted, for how long, and what may change.

    Attributes:
        kind: "gaussians" or "spheres".
        steps: of the optimiser, each on one photograph.
        sh_degree: largest degree of the harmonics of Gaussians; they come one degree after the other.
        strategy: which Gaussians come and go: "mcmc", "adaptive", or "none".
        cap: Gaussians at the most.
        poses: also refine the cameras' poses.
        exposures: also fit an affine map of the colours of each photograph.
        seed: of everything random.
        snapshot_every: steps between snapshots into the worker's spool, which it must have; 0: none.
    """

    kind: Kind = "gaussians"
    steps: int = 7000
    sh_degree: int = 3
    strategy: Strategy = "mcmc"
    cap: int = 0
    poses: bool = False
    exposures: bool = True
    seed: int = 0
    snapshot_every: int = 0

    @property
    def loss(self) -> Loss:
        """MCMC wants faint and small Gaussians to fade away."""
        return Loss(opacity=0.01, scale=0.01) if self.moves else Loss()

    @property
    def moves(self) -> bool:
        """Whether MCMC does."""
        return self.kind == "gaussians" and self.strategy == "mcmc"

    @property
    def density(self) -> AdaptiveDensity | Mcmc | None:
        """Which Gaussians come and go; the times are shares of the steps."""
        if self.kind == "spheres" or self.strategy == "none":
            return None
        start, every = max(self.steps // 60, 10), max(min(100, self.steps // 70), 5)
        if self.strategy == "mcmc":
            return Mcmc(cap=self.cap, start=start, stop=self.steps * 6 // 7, every=every)
        return AdaptiveDensity(
            start=max(self.steps // 14, 10),
            stop=self.steps // 2,
            every=every,
            reset_every=max(self.steps // 5, 100),
            max_count=self.cap,
        )

    def trainer_options(self) -> dict[str, Any]:
        """Arguments of `Client.trainer`."""
        harmonics = {"sh_degree_every": max(self.steps // 14, 1)} if self.kind == "gaussians" else {}
        return {
            "loss": self.loss,
            "density": self.density,
            "total_steps": self.steps,
            "refine_poses": Rate(*_POSES, self.steps) if self.poses else None,
            "refine_exposures": Rate(*_EXPOSURES, self.steps) if self.exposures else None,
            "seed": self.seed,
            "snapshot_every": self.snapshot_every,
            **harmonics,
        }


@dataclass(frozen=True)
class Checkpoint:
    """What `Client.resume_trainer` needs, and how the fit was asked for.

    Attributes:
        training_id: of the training on the worker.
        lease: lets whoever has it take the training up: the file is for its owner's eyes.
        size: most pixels along a side of a photograph.
        hold_out: every so-manieth photograph is kept aside.
        recipe: how the fit is made.
        before: how the scene scored that it began with.
    """

    training_id: str
    lease: str
    size: int
    hold_out: int
    recipe: Recipe
    before: Scores

    def write(self, path: Path) -> None:
        """Replaces the file, whole or not at all."""
        new = path.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(json.dumps(asdict(self), indent=2))
        new.replace(path)

    @staticmethod
    def read(path: Path) -> Checkpoint:
        """The checkpoint of a fit that was stopped.

        Raises:
            InvalidArgument: there is none, or it is not one.
        """
        try:
            values = json.loads(path.read_text())
            parts = {"recipe": Recipe(**values["recipe"]), "before": Scores(**values["before"])}
            return Checkpoint(**{**values, **parts})
        except FileNotFoundError:
            raise InvalidArgument.of(
                "resume", f"expected {path} of a fit that was stopped, got no such file; leave --resume out"
            ) from None
        except (ValueError, TypeError, KeyError) as error:
            raise InvalidArgument.of("resume", f"{path} is not a checkpoint of `lumigrad fit`: {error}") from error
