"""Changes of the rows of parameters, of their optimizers' states and of running statistics, all at once."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch

from lumigrad.client.compat.gsplat.projection import rotations

Parameters = MutableMapping[str, torch.nn.Parameter] | torch.nn.ParameterDict
Optimizers = Mapping[str, torch.optim.Optimizer]
Change = Callable[[torch.Tensor], torch.Tensor]
NamedChange = Callable[[str, torch.Tensor], torch.Tensor]

# The children of a split Gaussian are smaller by this factor (Kerbl et al., SIGGRAPH 2023).
_SHRINKING = 1.6
# torch.multinomial takes no more weights than this.
_MOST_WEIGHTS = 1 << 24


@dataclass(frozen=True)
class Splats:
    """Tensors that a strategy changes together.

    Attributes:
        params: parameters by name, a row for each Gaussian; before activation: logarithms of scales, logits of
            opacities.
        optimizers: one for each parameter that is trained.
        state: running statistics by name; tensors have a row for each Gaussian, other values are not changed.
        scene: an object with gsplat's methods `on_duplicate`, `on_split`, … that follows the changes; or None.
    """

    params: Parameters
    optimizers: Optimizers
    state: MutableMapping[str, Any]
    scene: Any = None

    @torch.no_grad()
    def duplicate(self, mask: torch.Tensor) -> None:
        """Appends a copy of each Gaussian of the mask, bool [N]."""
        chosen = mask.nonzero().flatten()
        self._change(lambda name, old: torch.cat([old, old[chosen]]), lambda old: _with_zeros(old, len(chosen)))
        self._change_state(lambda old: torch.cat([old, old[chosen]]))
        if self.scene is not None:
            self.scene.on_duplicate(chosen)

    @torch.no_grad()
    def split(self, mask: torch.Tensor, revised_opacity: bool = False) -> None:
        """Replaces each Gaussian of the mask, bool [N], by two smaller ones, which are sampled from it.

        Args:
            mask: the Gaussians to replace; the new ones are the last rows.
            revised_opacity: whether the two together are as opaque as the original (Bulò et al., "Revising
                densification in Gaussian splatting", 2024); otherwise each has its opacity.
        """
        chosen, rest = mask.nonzero().flatten(), (~mask).nonzero().flatten()
        scales = self.params["scales"][chosen].exp()
        turns = rotations(self.params["quats"][chosen])
        samples = (turns * (scales * torch.randn(2, *scales.shape, device=scales.device))[..., None, :]).sum(-1)

        def children(name: str, old: torch.Tensor) -> torch.Tensor:
            parents = old[chosen]
            if name == "means":
                return (parents + samples).flatten(0, 1)
            if name == "scales":
                parents = (scales / _SHRINKING).log()
            elif name == "opacities" and revised_opacity:
                parents = torch.logit(1.0 - (1.0 - parents.sigmoid()).sqrt())
            return torch.cat([parents, parents])

        self._change(
            lambda name, old: torch.cat([old[rest], children(name, old)]),
            lambda old: _with_zeros(old[rest], 2 * len(chosen)),
        )
        self._change_state(lambda old: torch.cat([old[rest], old[chosen], old[chosen]]))
        if self.scene is not None:
            self.scene.on_split(chosen, rest)

    @torch.no_grad()
    def remove(self, mask: torch.Tensor) -> None:
        """Removes the Gaussians of the mask, bool [N]."""
        rest = (~mask).nonzero().flatten()
        self._change(lambda name, old: old[rest], lambda old: old[rest])
        self._change_state(lambda old: old[rest])
        if self.scene is not None:
            self.scene.on_remove(mask)

    @torch.no_grad()
    def reset_opacities(self, value: float) -> None:
        """Clamps opacities to at most `value`, after activation, and sets the state of their optimizer to 0."""
        most = float(torch.logit(torch.tensor(value, device="cpu")))
        self._change(lambda name, old: old.clamp(max=most), torch.zeros_like, names=("opacities",))

    @torch.no_grad()
    def relocate(self, dead: torch.Tensor, min_opacity: float) -> None:
        """Moves the Gaussians of the mask `dead`, bool [N], onto living ones, sampled in proportion to opacity."""
        targets, living = dead.nonzero().flatten(), (~dead).nonzero().flatten()
        if not len(living):
            return
        sources = living[_sampled(self.params["opacities"][living], len(targets))]
        shared = self._shared(sources, min_opacity)

        def moved(name: str, old: torch.Tensor) -> torch.Tensor:
            new = old.clone()
            if name in shared:
                new[sources] = shared[name]
            new[targets] = new[sources]
            return new

        self._change(moved, lambda old: old.index_fill(0, sources, 0))
        self._change_state(lambda old: old.index_fill(0, sources, 0))
        if self.scene is not None:
            self.scene.on_relocate(targets, sources)

    @torch.no_grad()
    def sample_add(self, number: int, min_opacity: float) -> None:
        """Appends copies of Gaussians, sampled in proportion to opacity."""
        sources = _sampled(self.params["opacities"], number)
        shared = self._shared(sources, min_opacity)

        def grown(name: str, old: torch.Tensor) -> torch.Tensor:
            new = old.index_put((sources,), shared[name]) if name in shared else old
            return torch.cat([new, new[sources]])

        self._change(grown, lambda old: _with_zeros(old, number))
        self._change_state(lambda old: _with_zeros(old, number))
        if self.scene is not None:
            self.scene.on_sample_add(sources)

    @torch.no_grad()
    def add_noise(self, scale: float, transition: float, sharpness: float) -> None:
        """Moves the means by noise of each Gaussian's covariance, less the more opaque it is.

        Args:
            scale: factor of the noise.
            transition: opacity at which the noise has fallen to half.
            sharpness: how fast it falls there.
        """
        means, scales = self.params["means"], self.params["scales"].exp()
        opacities = self.params["opacities"].flatten().sigmoid()
        gates = torch.sigmoid(-sharpness * (opacities - transition))[:, None]
        noise = torch.randn_like(means) * gates * scale
        turns = rotations(self.params["quats"])
        along = (turns.mT * noise[:, None]).sum(-1) * scales.square()
        means.add_((turns * along[:, None]).sum(-1))

    def _shared(self, sources: torch.Tensor, min_opacity: float) -> dict[str, torch.Tensor]:
        """Returns opacities and scales of sampled Gaussians, before activation, with which all copies look like one."""
        raw = self.params["opacities"][sources]
        copies = torch.bincount(sources, minlength=len(self.params["opacities"]))[sources] + 1
        opacities, factors = relocated(raw.flatten().sigmoid(), copies, min_opacity)
        scales = self.params["scales"][sources].exp() * factors[:, None]
        return {"opacities": torch.logit(opacities).reshape(raw.shape), "scales": scales.log()}

    def _change(self, of_param: NamedChange, of_moment: Change, names: tuple[str, ...] = ()) -> None:
        """Replaces parameters, all if no names are given, and the tensors in their optimizers' states."""
        replace_rows(self.params, self.optimizers, of_param, lambda _, old: of_moment(old), names)

    def _change_state(self, of_row: Change) -> None:
        for name, value in self.state.items():
            if isinstance(value, torch.Tensor):
                self.state[name] = of_row(value)


def replace_rows(
    params: Parameters, optimizers: Optimizers, of_param: NamedChange, of_moment: NamedChange, names: Iterable[str] = ()
) -> None:
    """Replaces parameters, all if no names are given, and the tensors in their optimizers' states.

    Args:
        params: parameters by name.
        optimizers: one for each parameter that is trained.
        of_param: returns a parameter's new value from its name and its old value.
        of_moment: does so for tensors of its optimizer's state, by their names there.
        names: the parameters to replace.
    """
    for name in names or tuple(params.keys()):
        old = params[name]
        new = torch.nn.Parameter(of_param(name, old), requires_grad=old.requires_grad)
        params[name] = new
        if name not in optimizers:
            if old.requires_grad:
                raise AssertionError(f"expected an optimizer for {name}, which is trained, got none")
            continue
        optimizer = optimizers[name]
        moments = optimizer.state.pop(old, None)
        for group in optimizer.param_groups:
            group["params"] = [new if each is old else each for each in group["params"]]
        if moments is not None:
            # Some tensors have no rows, such as steps, and the products of NAdam's decays.
            optimizer.state[new] = {
                key: of_moment(key, value) if key != "step" and torch.is_tensor(value) and value.ndim else value
                for key, value in moments.items()
            }


# Copies beyond this number count as this many.
MOST_COPIES = 51


def relocated(
    opacities: torch.Tensor, copies: torch.Tensor, min_opacity: float = 0.005
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns opacities and factors of scales with which coinciding Gaussians together look like the original.

    Equation 9 of Kheradmand et al., "3D Gaussian splatting as Markov chain Monte Carlo", NeurIPS 2024.

    Args:
        opacities: [M] before.
        copies: int64 [M] how many coincide afterwards; at most `MOST_COPIES` count.
        min_opacity: least opacity afterwards.

    Returns:
        Two tensors [M].
    """
    number = copies.clamp(1, MOST_COPIES)
    # Doubles are needed: the terms of the sum alternate, and cancel where there are many.
    before = opacities.double()
    after = (1.0 - (1.0 - before) ** (1.0 / number)).clamp(min_opacity, 1.0 - torch.finfo(torch.float32).eps)
    most = int(number.max()) if len(number) else 0
    total, power = torch.zeros_like(before), after.clone()
    for k in range(most):
        # The sum over i from k + 1 to n of C(i - 1, k) is C(n, k + 1).
        total += (-1.0) ** k / (k + 1) ** 0.5 * _binomials(most, k + 1, number) * power
        power = power * after
    return after.to(opacities.dtype), (before / total).to(opacities.dtype)


def _binomials(most: int, k: int, number: torch.Tensor) -> torch.Tensor:
    """Returns C(n, k) for each number n up to `most`, as doubles."""
    row = torch.zeros(most + 1, dtype=torch.float64, device=number.device)
    for n in range(k, most + 1):
        row[n] = float(math.comb(n, k))
    return row[number]


def _with_zeros(old: torch.Tensor, number: int) -> torch.Tensor:
    return torch.cat([old, old.new_zeros(number, *old.shape[1:])])


def _sampled(raw_opacities: torch.Tensor, number: int) -> torch.Tensor:
    """Returns indices of Gaussians, sampled with replacement in proportion to opacity."""
    return sampled(raw_opacities.flatten().sigmoid(), number)


def sampled(weights: torch.Tensor, number: int) -> torch.Tensor:
    """Returns indices of weights, sampled with replacement in proportion to them."""
    if len(weights) <= _MOST_WEIGHTS:
        return torch.multinomial(weights, number, replacement=True)
    sums = weights.double().cumsum(0)
    places = torch.rand(number, dtype=torch.float64, device=sums.device) * sums[-1]
    return torch.searchsorted(sums, places, right=True).clamp_max(len(weights) - 1)
