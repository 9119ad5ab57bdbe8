"""An actor with a part of a scene, which sends visible Gaussians to the workers that draw them and draws a band."""

from __future__ import annotations

import os
import uuid
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import torch

from lumigrad.kernels import gaussians
from lumigrad.kernels.gaussians import Camera, Settings
from lumigrad.ray.bands import TILE, Integers, Reach

Arrays = dict[str, np.ndarray]
NUMBERS = "numbers"


class Restarted(Exception):
    """Ray has restarted an actor since its caller last heard of it, so the actor has its initial part again.

    Attributes:
        index: the number of the actor among those of the scene.
        life: its new life, see `Part.life`.
    """

    def __init__(self, index: int, life: str) -> None:
        super().__init__(index, life)
        self.index, self.life = index, life


@dataclass(frozen=True)
class View:
    """One camera of a call, and how to render it.

    Attributes:
        call: the number of the call.
        index: the number of the camera in the call.
        camera, settings, outputs: arguments of the kernels.
        background: [D] colour.
        retain: whether `backward` may follow.
    """

    call: int
    index: int
    camera: Camera
    settings: Settings
    outputs: tuple[str, ...]
    background: np.ndarray
    retain: bool


@dataclass
class _Passed:
    """State of a view in a part, until the view is drawn or, with `retain`, differentiated."""

    reach: Reach
    sent: list[Integers] = field(default_factory=list)
    # Rows that this worker sends to itself.
    own: Arrays = field(default_factory=dict)
    order: Integers | None = None
    ends: Integers | None = None
    # The rows of pixels [begin, end) that this worker draws.
    band: tuple[int, int] = (0, 0)
    state: Any = None


class Part:
    """A worker that holds a part of a scene's Gaussians, and draws one band of each image.

    Attributes:
        numbers: int32 [N], the numbers of the Gaussians in the whole scene, ascending.
        tensors: the tensors of the part, float32, by name. `SplitScene.update` may change or replace them.
        gradients: the gradients of the last call of `backward`, summed over its cameras, by the same names; empty
            before the first call.
        memory: values that updates keep, such as the moments of an optimiser.
    """

    def __init__(self, index: int, numbers: Integers, given: Arrays, device: str) -> None:
        """Begins with a part; its arrays stay in Ray's memory until `update` is called."""
        context: Any = ray.get_runtime_context()
        cpus = context.get_assigned_resources().get("CPU", 1.0)
        os.environ.setdefault("LUMIGRAD_NUM_THREADS", str(max(1, int(cpus))))
        self.numbers = numbers
        self.gradients: dict[str, torch.Tensor] = {}
        self.memory: dict[str, Any] = {}
        self._index, self._device, self._is_shared = index, torch.device(device), device == "cpu"
        self.tensors = {name: self._tensor(array) for name, array in given.items()}
        self._views: dict[tuple[int, int], _Passed] = {}
        self._life = uuid.uuid4().hex

    def life(self) -> str:
        """Returns an id that changes when the actor is restarted."""
        return self._life

    def project(self, life: str, view: View) -> Integers:
        """Finds the visible Gaussians, and drops the state of earlier calls; returns `Reach.counts`."""
        self._check(life)
        kept = self._views.items()
        self._views = {key: it for key, it in kept if key[0] == view.call or (it.state is not None and not view.retain)}
        camera, settings = view.camera, view.settings
        scene = gaussians.Gaussians(**self.tensors)
        found = gaussians.forward(scene, [camera], settings, outputs=("means2d", "radii"), rows=(0, 0))
        means, radii = (found.outputs[name][0].cpu().numpy() for name in ("means2d", "radii"))
        reach = Reach.of(means, radii, camera.width, camera.height, settings.pixel_center)
        self._views[view.call, view.index] = _Passed(reach)
        return reach.counts

    def send(self, life: str, view: View, edges: Sequence[int], band_of: Sequence[int]) -> Any:
        """Returns the Gaussians that reach each worker's band, as arrays of rows by name; None for this worker."""
        passed = self._passed(life, view)
        stored = {**self.tensors}
        if "sh" in stored and view.settings.sh_degree is not None:
            stored["sh"] = stored["sh"][:, : (view.settings.sh_degree + 1) ** 2]
        sent: list[Arrays | None] = []
        passed.sent = []
        for worker, band in enumerate(band_of):
            rows = passed.reach.within(edges[band], edges[band + 1])
            taken = {name: tensor[self._rows(rows)].cpu().numpy() for name, tensor in stored.items()}
            taken[NUMBERS] = self.numbers[rows]
            passed.sent.append(rows)
            sent.append(None if worker == self._index else taken)
            if worker == self._index:
                passed.own = taken
        return _returned(sent)

    def draw(self, life: str, view: View, first: int, last: int, *sent: Arrays | None) -> tuple[Arrays, int]:
        """Draws the rows of tiles [first, last); `sent` has the Gaussians from each worker, None for this one.

        Returns:
            The rows of the outputs, and the bytes received from other workers.
        """
        passed = self._passed(life, view)
        pieces = [passed.own if piece is None else piece for piece in sent]
        passed.own = {}
        numbers = np.concatenate([piece[NUMBERS] for piece in pieces])
        order = np.argsort(numbers, kind="stable")
        scene = {name: self._tensor(np.concatenate([piece[name] for piece in pieces])[order]) for name in self.tensors}
        passed.band = first * TILE, min(last * TILE, view.camera.height)
        found = gaussians.forward(
            gaussians.Gaussians(**scene),
            [view.camera],
            view.settings,
            background=self._tensor(view.background),
            outputs=view.outputs,
            retain=view.retain,
            rows=passed.band if first < last else None,
        )
        band = {name: tensor[0, slice(*passed.band)].cpu().numpy() for name, tensor in found.outputs.items()}
        if "ids" in band and len(numbers):
            band["ids"] = np.where(band["ids"] < 0, -1, numbers[order][band["ids"]]).astype(np.int32)
        if view.retain:
            passed.order, passed.ends = order, np.cumsum([len(piece[NUMBERS]) for piece in pieces])
            passed.state = found.state
        else:
            del self._views[view.call, view.index]
        moved = sum(array.nbytes for piece in sent if piece is not None for array in piece.values())
        return band, moved

    def differentiate(self, life: str, view: View, given: Arrays) -> Any:
        """Returns the gradients of each worker's Gaussians, as they were sent; `given` has those of the band."""
        passed = self._passed(life, view)
        state, passed.state = passed.state, None
        camera = view.camera
        whole = {name: np.zeros((1, camera.height, *array.shape[1:]), np.float32) for name, array in given.items()}
        for name, array in given.items():
            whole[name][0, slice(*passed.band)] = array
        upstream = {name: self._tensor(array) for name, array in whole.items()}
        found = gaussians.backward(state, upstream, tuple(self.tensors)).gradients
        assert passed.order is not None and passed.ends is not None
        place = np.empty_like(passed.order)
        place[passed.order] = np.arange(len(place))
        back = {name: tensor[self._rows(place)].cpu().numpy() for name, tensor in found.items()}
        cut = {name: np.split(array, passed.ends[:-1]) for name, array in back.items()}
        pieces = [{name: parts[worker] for name, parts in cut.items()} for worker in range(len(passed.ends))]
        passed.own = pieces[self._index]
        return _returned([None if worker == self._index else piece for worker, piece in enumerate(pieces)])

    def collect(self, life: str, view: View, *found: Arrays | None) -> None:
        """Adds the gradients from the bands, in the order of the workers that drew the bands."""
        passed = self._passed(life, view)
        if view.index == 0:
            self.gradients = {}
        for worker, piece in enumerate(found):
            rows = self._rows(passed.sent[worker])
            for name, array in (passed.own if piece is None else piece).items():
                to = self.gradients.setdefault(name, torch.zeros_like(self.tensors[name]))
                if name == "sh":
                    to = to[:, : array.shape[1]]
                to[rows] += self._tensor(array)
        del self._views[view.call, view.index]

    def update(self, life: str, change: Callable[..., Any], *arguments: Any) -> Any:
        """Calls `change(part, *arguments)`; first copies the tensors if they are still in Ray's memory."""
        self._check(life)
        if self._is_shared:
            self.tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
            self._is_shared = False
        return change(self, *arguments)

    def gathered(self, life: str) -> Arrays:
        """Returns the gradients, and the numbers of the Gaussians."""
        self._check(life)
        found = {name: tensor.cpu().numpy() for name, tensor in self.gradients.items()}
        return {NUMBERS: self.numbers, **found}

    def _check(self, life: str) -> None:
        if life != self._life:
            raise Restarted(self._index, self._life)

    def _passed(self, life: str, view: View) -> _Passed:
        self._check(life)
        if (view.call, view.index) not in self._views:
            # The call has failed, and a later one has dropped its state.
            raise Restarted(self._index, self._life)
        return self._views[view.call, view.index]

    def _rows(self, rows: Integers) -> torch.Tensor:
        return torch.from_numpy(rows).to(self._device)

    def _tensor(self, array: np.ndarray) -> torch.Tensor:
        with warnings.catch_warnings():
            # Arrays in Ray's memory are read-only, and are only read here.
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array).to(self._device)


def _returned(values: list[Any]) -> Any:
    """Returns values as the results of a remote call; Ray expects a single one without a tuple."""
    return values[0] if len(values) == 1 else tuple(values)
