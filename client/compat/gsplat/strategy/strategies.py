"""`DefaultStrategy` and `MCMCStrategy`: how Gaussians grow and shrink in number during a training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from lumigrad.client.compat.gsplat.strategy.rows import MOST_COPIES, Optimizers, Parameters, Splats

State = dict[str, Any]
_NEEDED = ("means", "scales", "quats", "opacities")


@dataclass
class Strategy:
    """The base class of strategies, which are called before and after `backward`, and change nothing here."""

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Raises AssertionError unless each trained parameter has an optimizer of its own, with one group."""
        trained = {name for name, value in params.items() if value.requires_grad}
        if trained != set(optimizers):
            text = f"expected an optimizer for each of {sorted(trained)}, got some for {sorted(optimizers)}"
            raise AssertionError(f"{text}; name optimizers like the parameters that require gradients")
        for name, optimizer in optimizers.items():
            if len(optimizer.param_groups) != 1:
                text = f"expected one parameter group in the optimizer of {name}, got {len(optimizer.param_groups)}"
                raise AssertionError(f"{text}; make one optimizer for each parameter")

    def step_pre_backward(self, *args: Any, **kwargs: Any) -> None:
        """Is called between `rasterization` and `backward`."""

    def step_post_backward(self, *args: Any, **kwargs: Any) -> None:
        """Is called after `backward`."""


class _Known(Strategy):
    """A strategy that changes parameters of known names."""

    def check_sanity(self, params: Parameters, optimizers: Optimizers) -> None:
        """Raises AssertionError unless parameters and optimizers are as the strategy needs them."""
        super().check_sanity(params, optimizers)
        missing = [name for name in _NEEDED if name not in params]
        if missing:
            raise AssertionError(f"expected the parameters {', '.join(_NEEDED)}, got none named {missing[0]}")


@dataclass
class DefaultStrategy(_Known):
    """Grows where the gradients of projected centres are large, and prunes what is transparent.

    Follows Kerbl et al., "3D Gaussian splatting for real-time radiance field rendering", 2023; with `absgrad` Ye et
    al., "AbsGS", 2024. Parameters are means, quats, scales (logarithms) and opacities (logits), and any others.

    Attributes:
        prune_opa: Gaussians of a smaller opacity are removed.
        grow_grad2d: Gaussians grow if the mean gradient of their projected centre, in pictures from -1 to 1, is larger;
            with `absgrad` larger values are usual, such as 0.0008.
        grow_scale3d: growing Gaussians up to this size are duplicated, larger ones split; relative to the scene's
            scale.
        grow_scale2d: Gaussians with larger radii, relative to the picture, are split; until `refine_scale2d_stop_iter`.
        prune_scale3d: larger Gaussians are removed after the first reset; relative to the scene's scale.
        prune_scale2d: Gaussians with larger radii, relative to the picture, are removed, too; until
            `refine_scale2d_stop_iter`.
        refine_scale2d_stop_iter: step until which radii count; 0: never.
        refine_start_iter: step after which Gaussians grow and are removed.
        refine_stop_iter: step at which this ends.
        refine_every: number of steps from one change to the next.
        reset_every: steps after which opacities are reset to at most twice `prune_opa`.
        pause_refine_after_reset: steps after a reset in which nothing grows or is removed.
        absgrad: take `meta["means2d"].absgrad`; pass absgrad=True to `rasterization` too.
        revised_opacity: whether the two parts of a split Gaussian together have its opacity.
        verbose: print what was changed.
        key_for_gradient: the tensor in `meta` whose gradient counts.

    Example:
        strategy = DefaultStrategy()
        strategy.check_sanity(params, optimizers)
        state = strategy.initialize_state(scene_scale=1.0)
        # in each step, around loss.backward():
        strategy.step_pre_backward(params, optimizers, state, step, meta)
        strategy.step_post_backward(params, optimizers, state, step, meta, packed=True)
    """

    prune_opa: float = 0.005
    grow_grad2d: float = 0.0002
    grow_scale3d: float = 0.01
    grow_scale2d: float = 0.05
    prune_scale3d: float = 0.1
    prune_scale2d: float = 0.15
    refine_scale2d_stop_iter: int = 0
    refine_start_iter: int = 500
    refine_stop_iter: int = 15_000
    reset_every: int = 3000
    refine_every: int = 100
    pause_refine_after_reset: int = 0
    absgrad: bool = False
    revised_opacity: bool = False
    verbose: bool = False
    key_for_gradient: Literal["means2d", "gradient_2dgs"] = "means2d"

    def initialize_state(self, scene_scale: float = 1.0) -> State:
        """Returns empty running statistics; sizes are relative to `scene_scale`, the extent of the scene."""
        return {**dict.fromkeys(self._statistics), "scene_scale": scene_scale}

    @property
    def _statistics(self) -> tuple[str, ...]:
        """Sums of slopes, how often each Gaussian was visible and, where they count, largest radii."""
        return ("grad2d", "count", "radii") if self.refine_scale2d_stop_iter > 0 else ("grad2d", "count")

    def step_pre_backward(
        self, params: Parameters, optimizers: Optimizers, state: State, step: int, info: Mapping[str, Any]
    ) -> None:
        """Has autograd keep the gradient of the projected centres; to be called before `backward`."""
        info[self.key_for_gradient].retain_grad()

    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: Mapping[str, Any],
        packed: bool = False,
        scene: Any = None,
    ) -> None:
        """Adds to the statistics and, if the step is due, changes the Gaussians; to be called after `backward`.

        Args:
            params: parameters by name; entries are replaced.
            optimizers: optimizers by the names of parameters; their states follow.
            state: the result of `initialize_state`; changed.
            step: number of the step.
            info: the third result of `rasterization`.
            packed: as passed to `rasterization`.
            scene: an object that follows the changes, see `Splats`.
        """
        if step >= self.refine_stop_iter:
            return
        self._add(params, state, info, packed)
        splats = Splats(params, optimizers, state, scene)
        is_due = step > self.refine_start_iter and step % self.refine_every == 0
        if is_due and step % self.reset_every >= self.pause_refine_after_reset:
            duplicated, divided = self._grow(splats, step)
            removed = self._prune(splats, step)
            if self.verbose:
                count = len(params["means"])
                print(f"Step {step}: {duplicated} duplicated, {divided} split, {removed} removed; {count} Gaussians.")
            for name in self._statistics:
                state[name].zero_()
        if step % self.reset_every == 0 and step > 0:
            splats.reset_opacities(2.0 * self.prune_opa)

    def _add(self, params: Parameters, state: State, info: Mapping[str, Any], packed: bool) -> None:
        centres = info[self.key_for_gradient]
        found = centres.absgrad if self.absgrad else centres.grad
        # Slopes refer to pictures from -1 to 1, and to the loss of a single one.
        half = found.new_tensor([info["width"], info["height"]]) * (0.5 * info["n_cameras"])
        slopes, radii = (found * half).norm(dim=-1), info["radii"]
        if packed:
            ids = info["gaussian_ids"]
        else:
            visible = (radii > 0).all(dim=-1)
            ids, slopes, radii = visible.nonzero()[:, -1], slopes[visible], radii[visible]
        for name in self._statistics:
            if state[name] is None:
                state[name] = slopes.new_zeros(len(params["means"]))
        state["grad2d"].index_add_(0, ids, slopes)
        state["count"].index_add_(0, ids, torch.ones_like(slopes))
        if "radii" in self._statistics:
            sizes = radii.amax(dim=-1).to(slopes.dtype) / max(info["width"], info["height"])
            state["radii"].scatter_reduce_(0, ids, sizes, "amax")

    @torch.no_grad()
    def _grow(self, splats: Splats, step: int) -> tuple[int, int]:
        state = splats.state
        slopes = state["grad2d"] / state["count"].clamp_min(1)
        is_steep = slopes > self.grow_grad2d
        sizes = splats.params["scales"].exp().amax(dim=-1)
        is_small = sizes <= self.grow_scale3d * state["scene_scale"]
        to_copy, to_divide = is_steep & is_small, is_steep & ~is_small
        if step < self.refine_scale2d_stop_iter:
            to_divide |= state["radii"] > self.grow_scale2d
        copied, divided = int(to_copy.sum()), int(to_divide.sum())
        if copied:
            splats.duplicate(to_copy)
        if divided:
            # Copies are not split.
            splats.split(torch.nn.functional.pad(to_divide, (0, copied)), self.revised_opacity)
        return copied, divided

    @torch.no_grad()
    def _prune(self, splats: Splats, step: int) -> int:
        state, params = splats.state, splats.params
        is_gone = params["opacities"].flatten().sigmoid() < self.prune_opa
        if step > self.reset_every:
            is_gone |= params["scales"].exp().amax(dim=-1) > self.prune_scale3d * state["scene_scale"]
            if step < self.refine_scale2d_stop_iter:
                is_gone |= state["radii"] > self.prune_scale2d
        removed = int(is_gone.sum())
        if removed:
            splats.remove(is_gone)
        return removed


@dataclass
class MCMCStrategy(_Known):
    """Moves transparent Gaussians onto opaque ones, adds Gaussians up to a limit, and adds noise to their means.

    Follows Kheradmand et al., "3D Gaussian splatting as Markov chain Monte Carlo", NeurIPS 2024. Parameters are means,
    quats, scales (logarithms) and opacities (logits), and any others.

    Attributes:
        cap_max: largest number of Gaussians.
        noise_lr: factor of the noise, beside the learning rate.
        refine_start_iter: step after which Gaussians are moved and added.
        refine_stop_iter: step at which this ends.
        noise_injection_stop_iter: step from which there is no noise; negative: there is always noise.
        refine_every: number of steps from one change to the next.
        min_opacity: Gaussians of at most this opacity are moved.
        verbose: print what was changed.
        noise_opacity_t: opacity at which the noise has fallen to half.
        noise_opacity_k: how fast it falls there.

    Example:
        strategy = MCMCStrategy(cap_max=100_000)
        state = strategy.initialize_state()
        # in each step, after loss.backward():
        strategy.step_post_backward(params, optimizers, state, step, meta, lr=1e-3)
    """

    cap_max: int = 1_000_000
    noise_lr: float = 5e5
    refine_start_iter: int = 500
    refine_stop_iter: int = 25_000
    noise_injection_stop_iter: int = -1
    refine_every: int = 100
    min_opacity: float = 0.005
    verbose: bool = False
    noise_opacity_t: float = 0.005
    noise_opacity_k: float = 100.0

    def initialize_state(self) -> State:
        """Returns a state with gsplat's table of binomial coefficients, which programs may read."""
        rows = [[float(math.comb(n, k)) for k in range(MOST_COPIES)] for n in range(MOST_COPIES)]
        return {"binoms": torch.tensor(rows)}

    def step_post_backward(
        self,
        params: Parameters,
        optimizers: Optimizers,
        state: State,
        step: int,
        info: Mapping[str, Any],
        lr: float,
        scene: Any = None,
    ) -> None:
        """Changes the Gaussians if the step is due, and adds noise; to be called after `backward`.

        `lr` is the learning rate of the means. The other arguments are those of `DefaultStrategy`; `info` is not read.
        """
        splats = Splats(params, optimizers, {}, scene)
        if self.refine_start_iter < step < self.refine_stop_iter and step % self.refine_every == 0:
            moved, added = self._move(splats), self._add(splats)
            if self.verbose:
                print(f"Step {step}: {moved} moved, {added} added; {len(params['means'])} Gaussians.")
        if self.noise_injection_stop_iter < 0 or step < self.noise_injection_stop_iter:
            splats.add_noise(lr * self.noise_lr, self.noise_opacity_t, self.noise_opacity_k)

    @torch.no_grad()
    def _move(self, splats: Splats) -> int:
        dead = splats.params["opacities"].flatten().sigmoid() <= self.min_opacity
        number = int(dead.sum())
        if number:
            splats.relocate(dead, self.min_opacity)
        return number

    def _add(self, splats: Splats) -> int:
        count = len(splats.params["means"])
        number = max(0, min(self.cap_max, int(1.05 * count)) - count)
        if number:
            splats.sample_add(number, self.min_opacity)
        return number
