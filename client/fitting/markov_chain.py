"""Gaussians that move and grow as in 3DGS as MCMC, in this process. The worker has the same in kernels."""

from __future__ import annotations

from math import comb

import numpy as np

from lumigrad.client.extras import require
from lumigrad.client.fitting.raw_scene import RawScene
from lumigrad.client.formats.activation import logits_of_opacities
from lumigrad.client.named_arrays import Array
from lumigrad.client.training.density import Mcmc

# More Gaussians than this upon each other look as so many.
_MOST_SHARES = 51
_GATE_SHARPNESS, _GATE_OPACITY = 100.0, 0.005


class MarkovChain:
    """Kheradmand et al., "3D Gaussian splatting as Markov chain Monte Carlo", NeurIPS 2024."""

    def __init__(self, options: Mcmc, seed: int) -> None:
        self._options = options
        self._random = np.random.default_rng(seed)

    def after_step(self, raw: RawScene, step: int, rate: float) -> None:
        """What follows step `step`; `rate` is that of the means."""
        options = self._options
        if options.start <= step <= options.stop and step % options.every == 0:
            self._relocate(raw)
            self._grow(raw)
        self._move(raw, rate * options.noise)

    def _relocate(self, raw: RawScene) -> None:
        """Dead Gaussians become shares of living ones, drawn in proportion to their opacities."""
        opacities = raw.value("opacities")
        dead = ~(opacities > self._options.min_opacity)
        targets = np.flatnonzero(dead)
        if not len(targets) or dead.all():
            return
        sources = self._draw(np.where(dead, 0.0, opacities), len(targets))
        self._share(raw, sources)
        for name, tensor in raw.tensors.items():
            tensor[targets] = tensor[sources]
            raw.moments[name].forget(np.concatenate([sources, targets]))

    def _grow(self, raw: RawScene) -> None:
        """Adds shares of living Gaussians."""
        count = len(raw)
        added = min(self._options.cap, int((1 + self._options.growth) * count)) - count
        if added <= 0:
            return
        sources = self._draw(raw.value("opacities"), added)
        self._share(raw, sources)
        for name, tensor in raw.tensors.items():
            raw.tensors[name] = np.concatenate([tensor, tensor[sources]])
            raw.moments[name].grow(added)

    def _draw(self, weights: Array, count: int) -> Array:
        share = np.asarray(weights, np.float64)
        return self._random.choice(len(share), count, p=share / share.sum())

    def _share(self, raw: RawScene, sources: Array) -> None:
        """Opacities and scales of those that are to lie upon each other, the drawn ones and each one more: eq. 9."""
        rows, drawn = np.unique(sources, return_counts=True)
        shares = np.minimum(drawn + 1, _MOST_SHARES)
        opacities = raw.value("opacities")[rows].astype(np.float64)
        each = 1 - (1 - opacities) ** (1 / shares)
        sums = np.empty(len(rows))
        for count in np.unique(shares):
            chosen = shares == count
            terms = [
                comb(int(count), k) * (-1) ** (k + 1) * each[chosen] ** k / np.sqrt(k) for k in range(1, count + 1)
            ]
            sums[chosen] = np.sum(terms, axis=0)
        raw.tensors["scales"][rows] += np.log(opacities / sums).astype(np.float32)[:, None]
        least = self._options.min_opacity
        raw.tensors["opacities"][rows] = logits_of_opacities(np.clip(each, least, 1 - 1e-6))

    def _move(self, raw: RawScene, strength: float) -> None:
        """Those that are nearly transparent move at random, within their own ellipsoid."""
        closed = _GATE_SHARPNESS * (raw.value("opacities").astype(np.float64) - _GATE_OPACITY)
        gate = 1 / (1 + np.exp(closed))
        rows = np.flatnonzero(gate > 1e-6)
        rotation = require("scipy.spatial.transform", "fit", "noise for Gaussians").Rotation
        turned = rotation.from_quat(raw.tensors["quats"][rows], scalar_first=True)
        normal = self._random.standard_normal((len(rows), 3))
        noise = turned.apply(turned.apply(normal, inverse=True) * np.exp(2 * raw.tensors["scales"][rows]))
        raw.tensors["means"][rows] += (strength * gate[rows, None] * noise).astype(np.float32)
