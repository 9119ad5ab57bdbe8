"""How a fit is made, as values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lumigrad.client.training.density import AdaptiveDensity, Mcmc
from lumigrad.client.training.options import Loss, Rate

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
