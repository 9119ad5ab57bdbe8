"""Which Gaussians come and go during a training, as values."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lumigrad.client.arguments import number, whole_number
from lumigrad.v1 import density_pb2

_MOST = 1 << 40


@dataclass(frozen=True, kw_only=True)
class AdaptiveDensity:
    """Adaptive density control (Kerbl et al. 2023): what is blurred is cloned or split, what is faint is pruned.

    Attributes:
        start: first step at which Gaussians grow and are pruned.
        stop: last one.
        every: how often, steps.
        reset_every: opacities are cut to twice `prune_opacity` every so many steps; 0: never.
        pause_after_reset: no growth for so many steps after that.
        grow_gradient: mean norm of the gradient of a projected centre, in normalised device coordinates.
        grow_scale: share of the scene's extent, above which Gaussians are split, not cloned.
        prune_scale: share above which they are pruned after the first reset.
        prune_opacity: less opaque ones are pruned.
        grow_screen: Gaussians with a larger radius, as a share of the picture, are split before `screen_stop`.
        prune_screen: those with a larger one are pruned before it.
        screen_stop: step; 0: sizes on the screen do not matter.
        absolute_gradients: sum absolute values over the pixels (Ye et al. 2024); use a larger `grow_gradient`, 8e-4.
        revised_opacity: opacities of split Gaussians as Bulo et al. (2024) have them.
        max_count: Gaussians at the most; 0: the worker's limit.
    """

    start: int = 500
    stop: int = 15_000
    every: int = 100
    reset_every: int = 3000
    pause_after_reset: int = 0
    grow_gradient: float = 2e-4
    grow_scale: float = 0.01
    prune_scale: float = 0.1
    prune_opacity: float = 0.005
    grow_screen: float = 0.05
    prune_screen: float = 0.15
    screen_stop: int = 0
    absolute_gradients: bool = False
    revised_opacity: bool = False
    max_count: int = 0

    def message(self, extent: float) -> density_pb2.DensityControl:
        """The contract's; `extent` is the radius of what the cameras see, scene units."""
        values = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "max_count"}
        for name, value in values.items():
            if isinstance(value, float):
                number(name, value)
            elif not isinstance(value, bool):
                whole_number(name, value, 0, _MOST)
        strategy = density_pb2.DefaultStrategy(**values)
        return density_pb2.DensityControl(adaptive=strategy, extent=extent, max_count=self.max_count)


@dataclass(frozen=True, kw_only=True)
class Mcmc:
    """3D Gaussian splatting as Markov chain Monte Carlo (Kheradmand et al. 2024): dead Gaussians move to living ones.

    Use it with `Loss(opacity=0.01, scale=0.01)`.

    Attributes:
        cap: Gaussians at the most.
        start: first step at which they move and grow.
        stop: last one.
        every: how often, steps.
        noise: factor on the learning rate of the means, of the noise that each step adds to them.
        min_opacity: less opaque ones are dead.
        growth: how much their number grows each time, a share.
    """

    cap: int
    start: int = 500
    stop: int = 25_000
    every: int = 100
    noise: float = 5e5
    min_opacity: float = 0.005
    growth: float = 0.05

    def message(self, extent: float) -> density_pb2.DensityControl:
        """The contract's; `extent` is the radius of what the cameras see, scene units."""
        for name in ("cap", "start", "stop", "every"):
            whole_number(name, getattr(self, name), 0, _MOST)
        for name in ("noise", "min_opacity", "growth"):
            number(name, getattr(self, name))
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return density_pb2.DensityControl(mcmc=density_pb2.McmcStrategy(**values), extent=extent)
