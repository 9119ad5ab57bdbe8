"""A training whose steps are made in this process: the worker renders and differentiates, and keeps nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from lumigrad.client.camera import Camera
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument, LumigradError
from lumigrad.client.fitting.exposures import Exposures
from lumigrad.client.fitting.markov_chain import MarkovChain
from lumigrad.client.fitting.picture_loss import PictureLoss
from lumigrad.client.fitting.raw_scene import RawScene
from lumigrad.client.fitting.recipe import Recipe
from lumigrad.client.fitting.shot import Shot
from lumigrad.client.gaussians import Gaussians
from lumigrad.client.named_arrays import Array
from lumigrad.client.render_settings import settings_of
from lumigrad.client.request import WireFormat
from lumigrad.client.scene import SceneHandle
from lumigrad.client.settings import SphereSettings
from lumigrad.client.spheres import Spheres
from lumigrad.client.training.density import Mcmc
from lumigrad.client.training.options import Rate, default_rates, extent_of
from lumigrad.client.training.results import StepResult


class GradientTrainer:
    """Parameters, loss, Adam and MCMC here; pictures and gradients from `Client.render` and `Frame.backward`.

    A step carries the scene to the worker and its gradients back, so that any worker will do, and any change of the
    loop can be made here; where bytes are dear, `Client.trainer` is the one to use.
    """

    def __init__(
        self,
        client: Client,
        scene: Gaussians | Spheres,
        shots: Sequence[Shot],
        recipe: Recipe,
        wire_format: WireFormat = "float32",
    ) -> None:
        """Begins.

        Args:
            client: of the worker that renders.
            scene: where to begin.
            shots: what to fit it to.
            recipe: how; its densities are MCMC or none, and cameras stay where they are.
            wire_format: how the gradients travel.
        """
        density = recipe.density
        if density is not None and not isinstance(density, Mcmc):
            raise InvalidArgument.of(
                "strategy", "expected mcmc or none for steps that are made here; adaptive needs steps on the worker"
            )
        if recipe.poses:
            raise InvalidArgument.of("refine_poses", "poses are refined by steps on the worker only")
        self.step_number = 0
        self._client, self._shots, self._recipe, self._wire_format = client, shots, recipe, wire_format
        self._raw = RawScene.of(scene)
        self._options = recipe.trainer_options()
        self._extent = extent_of([shot.camera for shot in shots])
        self._rates = default_rates(self._raw.kind, tuple(self._raw.tensors), self._extent, recipe.steps)
        self._exposures = Exposures(len(shots)) if recipe.exposures else None
        self._chain = MarkovChain(density, recipe.seed) if density is not None else None
        self._random = np.random.default_rng(recipe.seed)
        self._fixed = _fixed_settings(scene, [shot.camera for shot in shots])
        self._order: list[int] = []
        self._published: SceneHandle | None = None

    def steps(self, count: int) -> Iterator[StepResult]:
        """Makes so many steps, each of one photograph; all photographs come once before any comes again."""
        for _ in range(count):
            if not self._order:
                self._order = self._random.permutation(len(self._shots)).tolist()
            yield self._step(self._order.pop())

    def scene(self) -> Gaussians | Spheres:
        """The scene as it is now."""
        return self._raw.scene()

    def publish(self) -> SceneHandle:
        """Stores the scene as it is now on the worker, in the place of the one that was stored before."""
        self._forget()
        self._published = self._client.put(self._raw.scene())
        return self._published

    def exposures(self) -> Array | None:
        """[V, 3, 4] of the photographs; None: they are not fitted."""
        return None if self._exposures is None else self._exposures.matrices.copy()

    def close(self, *, finish: bool = True) -> None:
        """Has the worker forget the scene; `finish` is for the likeness with `Trainer`."""
        self._forget()

    def _step(self, view: int) -> StepResult:
        number, shot, scene = self.step_number, self._shots[view], self._raw.scene()
        frame = self._client.render(scene, shot.camera, retain=True, **self._settings(scene))
        found = self._loss(view, frame.color)
        gradients = frame.backward(
            color=found.gradient, sparse=True, wire_format=self._wire_format, release=True, timeout_s=None
        )
        rates = {name: rate.at(number) if isinstance(rate, Rate) else rate for name, rate in self._rates.items()}
        index = gradients["index"]
        dense = {name: self._dense(name, index, gradients[name]) for name in self._raw.tensors}
        value, terms = found.value, dict(found.terms)
        value += self._regularise(dense, terms)
        self._raw.step(dense, rates)
        if self._chain is not None:
            self._chain.after_step(self._raw, number, rates["means"])
        self.step_number += 1
        return StepResult(
            number, (view,), value, terms, len(self._raw), len(index), {}, None, False, None, gradients.timings
        )

    def _settings(self, scene: Gaussians | Spheres) -> dict[str, Any]:
        if not isinstance(scene, Gaussians) or scene.sh is None:
            return self._fixed
        return {"sh_degree": min(self.step_number // self._options["sh_degree_every"], scene.sh_degree)}

    def _loss(self, view: int, picture: Array) -> PictureLoss:
        """Of the exposed picture; its gradient is by the picture itself."""
        shot, loss, exposures = self._shots[view], self._recipe.loss, self._exposures
        shown = picture if exposures is None else exposures.exposed(view, picture)
        found = PictureLoss.of(shown, shot.photograph, shot.mask, loss.l1, loss.dssim)
        if exposures is None:
            return found
        rate = self._options["refine_exposures"].at(self.step_number)
        return PictureLoss(found.value, found.terms, exposures.step(view, picture, found.gradient, rate))

    def _dense(self, name: str, index: Array, rows: Array) -> Array:
        dense = np.zeros_like(self._raw.tensors[name])
        dense[index] = rows
        return dense

    def _regularise(self, gradients: dict[str, Array], terms: dict[str, float]) -> float:
        """Adds the mean opacity and the mean size to the loss, as the recipe weighs them."""
        added, loss = 0.0, self._recipe.loss
        for name, tensor, weight in (("opacity", "opacities", loss.opacity), ("scale", "scales", loss.scale)):
            if weight and tensor in gradients:
                values = self._raw.value(tensor)
                terms[name] = float(values.mean())
                gradients[tensor] += np.float32(weight / values.size)
                added += weight * terms[name]
        return added

    def _forget(self) -> None:
        if self._published is not None:
            # The worker may have evicted it.
            with suppress(LumigradError):
                self._client.delete(self._published)
            self._published = None


def _fixed_settings(scene: Gaussians | Spheres, cameras: Sequence[Camera]) -> dict[str, Any]:
    """Spheres keep the range of depths that they begin with, for it shapes their blending."""
    if isinstance(scene, Gaussians):
        return {}
    settings = settings_of(scene, cameras, None, None, {}, {})
    assert isinstance(settings, SphereSettings)
    return {"min_depth": settings.min_depth, "max_depth": settings.max_depth}
