"""gsplat's `meta`: intermediate results, which are computed when they are first read.

Workers do not send them: they are computed here from the tensors that were passed, or with sensors by a second call.
Only the radii come with the picture, if there are gradients: strategies read them in each step, and packed shapes
depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

import torch

from lumigrad.client.compat.gsplat.options import GsplatArgumentError
from lumigrad.client.compat.gsplat.projection import Bodies, Ellipses, Film, locate, project
from lumigrad.client.compat.gsplat.tiles import Intersections, Projected, intersect
from lumigrad.client.operators.gaussians import GaussianCall
from lumigrad.client.torch.gaussian_inputs import Prepared
from lumigrad.client.torch.gaussian_nodes import Layout
from lumigrad.client.torch.remote import Tensors, run

# Outputs of the worker by gsplat's names.
OUTPUTS = {
    "radii": "radii",
    "means2d": "means2d",
    "depths": "depths",
    "conics": "conics",
    "opacities": "projected_opacities",
}


class Meta(dict[str, Any]):
    """A dict some of whose values are computed when they are first read."""

    # The methods of dict would return values that are not computed yet.
    get, values, items = Mapping.get, Mapping.values, Mapping.items  # type: ignore[assignment]
    setdefault = MutableMapping.setdefault
    __eq__ = Mapping.__eq__
    __hash__ = None

    def __init__(self, values: dict[str, Any], later: dict[str, Callable[[], Any]]) -> None:
        super().__init__({**values, **{name: _Later(compute) for name, compute in later.items()}})

    def __getitem__(self, name: str) -> Any:
        value = super().__getitem__(name)
        if isinstance(value, _Later):
            value = self[name] = value.compute()
        return value

    def __iter__(self) -> Iterator[str]:
        # dict(meta) and {**meta} would otherwise copy values that are not computed yet.
        return super().__iter__()

    def pop(self, name: str, *default: Any) -> Any:
        """Like dict.pop."""
        if name in self:
            _ = self[name]
        return super().pop(name, *default)

    def popitem(self) -> tuple[str, Any]:
        """Like dict.popitem."""
        if not self:
            raise KeyError("popitem(): dictionary is empty")
        name = next(reversed(self))
        return name, self.pop(name)

    def copy(self) -> dict[str, Any]:
        """Like dict.copy; all values are computed."""
        return dict(self.items())

    def __or__(self, other: Any) -> Any:
        return self.copy() | other


def in_this_mode(compute: Callable[[], Any]) -> Callable[[], Any]:
    """Returns a function that records gradients if they are recorded now, wherever it is called.

    Otherwise a value that is first read without gradients, such as to print it, would have none in a loss.
    """
    is_recorded, is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

    def computed() -> Any:
        with torch.inference_mode(is_inference), torch.set_grad_enabled(is_recorded):
            return compute()

    return computed


class _Later:
    def __init__(self, compute: Callable[[], Any]) -> None:
        self.compute = compute

    def __repr__(self) -> str:
        # The repr of the dictionary shows this, too, and computes nothing.
        return "<computed when read>"


class Snapshot:
    """Tensors as they were when a call was made, though optimizers change parameters in place."""

    def __init__(self, tensors: Tensors) -> None:
        """Copies the tensors that optimizers may change, and records the versions of all."""
        given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
        self._tensors = tensors
        self._versions = {name: _version(tensor) for name, tensor in given.items()}
        parameters = {name: tensor for name, tensor in given.items() if tensor.is_leaf and tensor.requires_grad}
        self._copies = {name: tensor.detach().clone() for name, tensor in parameters.items()}

    def tensors(self) -> Tensors:
        """Returns the tensors, as part of their graph unless one has been changed since."""
        changed = [name for name, version in self._versions.items() if _version(self._tensors[name]) != version]
        if not changed:
            return self._tensors
        for name in changed:
            if name not in self._copies:
                text = "expected the values of the call, but they were changed in place before meta was read"
                raise GsplatArgumentError.of(name, f"{text}; read meta before that, or pass a copy")
        kept = {name: None if tensor is None else tensor.detach() for name, tensor in self._tensors.items()}
        return {**kept, **self._copies}


def _version(tensor: torch.Tensor | None) -> int:
    """Returns how often a tensor was changed in place; 0 for tensors of inference mode, which do not count."""
    return 0 if tensor is None or tensor.is_inference() else tensor._version


@dataclass
class Intermediates:
    """Values for each camera and Gaussian of a call.

    Attributes:
        compute: computes [.., C, N, ...] by name.
        shape: the sizes [.., C, N].
        device: where results go.
        packed: whether results hold visible Gaussians only.
        names: the names that `compute` knows; boxes of tiles need "radii", "means2d" and "depths".
        centres: a tensor in the layout of results, part of the graph, that holds the projected centres once they are
            read; None: they have no gradient.
        is_read: whether the projected centres have been read.
    """

    compute: Callable[[str], torch.Tensor]
    shape: tuple[int, ...]
    device: torch.device
    packed: bool
    names: tuple[str, ...] = tuple(OUTPUTS)
    centres: torch.Tensor | None = field(default=None, init=False)
    is_read: bool = field(default=False, init=False)

    @cached_property
    def layout(self) -> Layout:
        """Positions of the values of each Gaussian in results."""
        visible = None
        if self.packed:
            visible = (self.compute("radii") > 0).all(dim=-1).reshape(-1).nonzero().flatten().cpu()
        return Layout(self.shape, visible, self.device)

    def __getitem__(self, name: str) -> torch.Tensor:
        """Returns a result in gsplat's layout."""
        if name != "means2d" or self.centres is None:
            return self._arranged(name)
        if not self.is_read:
            # Hidden from autograd, because the graph was made before the values were known.
            self.centres.data.copy_(self._arranged(name).detach())
            self.is_read = True
        return self.centres

    def _arranged(self, name: str) -> torch.Tensor:
        values = self.compute(name)
        return self.layout.arrange(values.reshape(math.prod(self.shape[:-1]), *values.shape[len(self.shape) - 1 :]))

    def ids(self, axis: int) -> torch.Tensor | None:
        """Returns the scene (0), camera (1) or Gaussian (2) of each packed row; None if results are not packed."""
        visible, (cameras, count) = self.layout.visible, self.shape[-2:]
        if visible is None:
            return None
        view = visible // count
        return (view // cameras, view % cameras, visible % count)[axis].to(self.device)

    def projected(self) -> Projected:
        """Returns the Gaussians of all pictures in one list."""
        axes = 1 if self.packed else len(self.shape)
        arrays = {name: self[name].detach() for name in OUTPUTS if name in self.names}
        flat = {name: array.flatten(0, axes - 1) for name, array in arrays.items()}
        # Boxes depend on neither conics nor opacities.
        absent = flat["depths"].new_zeros(0)
        flat = {name: flat.get(name, absent) for name in OUTPUTS}
        visible = self.layout.visible
        rows = torch.arange(len(flat["depths"]), device="cpu") if visible is None else visible
        return Projected((rows // self.shape[-1]).to(self.device), **flat)


class Jacobian:
    """Computes ellipses by the Jacobian of the camera, here and differentiably."""

    def __init__(self, snapshot: Snapshot, film: Film, radii: torch.Tensor | None) -> None:
        """Computes nothing yet.

        Args:
            snapshot: the arguments of `rasterization` of these names: means, covars [.., N, 6], quats, scales,
                opacities, viewmats, Ks.
            film: which ellipses are kept.
            radii: int32 [.., C, N, 2] if the worker sent them, else None.
        """
        self._snapshot, self._film, self._radii = snapshot, film, radii

    def __call__(self, name: str) -> torch.Tensor:
        """Computes values of a name of `OUTPUTS`."""
        if name == "radii":
            return self._ellipses.radii if self._radii is None else self._radii
        tensors = self._tensors
        if name == "opacities":
            opacities = tensors["opacities"][..., None, :]
            shown = opacities * self._ellipses.compensations if self._film.antialiased else opacities
            return torch.where(self._visible, shown, 0.0).float()
        if self._radii is None or name == "conics":
            found: torch.Tensor = getattr(self._ellipses, name)
            return found.float()
        # Faster than whole ellipses.
        located = locate(tensors["means"], tensors["viewmats"], tensors["Ks"], self._film)
        values = located.depths if name == "depths" else torch.stack(located.pixels, -1)
        return torch.where(self._visible if name == "depths" else self._visible[..., None], values, 0.0).float()

    @cached_property
    def _visible(self) -> torch.Tensor:
        return (self("radii") > 0).all(dim=-1)

    @cached_property
    def _tensors(self) -> dict[str, Any]:
        tensors: dict[str, Any] = dict(self._snapshot.tensors())
        return {**tensors, **{name: tensors[name].to(tensors["means"].device) for name in ("viewmats", "Ks")}}

    @cached_property
    def _ellipses(self) -> Ellipses:
        bodies = Bodies(*(self._tensors[name] for name in ("means", "covars", "quats", "scales", "opacities")))
        return project(bodies, self._tensors["viewmats"], self._tensors["Ks"], self._film)


class SecondCall:
    """Has the worker compute the projections; as in gsplat with sensors, only opacities have a gradient."""

    def __init__(self, snapshot: Snapshot, call: GaussianCall, tensors: Prepared) -> None:
        """Makes no call yet.

        Args:
            snapshot: the inputs of the call.
            call: the call that was made.
            tensors: its inputs.
        """
        self._snapshot, self._call, self._sizes = snapshot, call, (*tensors.views, tensors.count)

    def __call__(self, name: str) -> torch.Tensor:
        """Computes values of a name of `OUTPUTS`."""
        found = self._found
        if name != "opacities":
            return found[name]
        opacities = self._snapshot.tensors()["opacities"]
        assert opacities is not None
        return torch.where((found["radii"] > 0).all(dim=-1), opacities[..., None, :], 0.0)

    @cached_property
    def _found(self) -> dict[str, torch.Tensor]:
        with torch.no_grad():
            frame = run(replace(self._call, outputs=tuple(OUTPUTS.values())), self._snapshot.tensors())
        arrays = {name: torch.from_numpy(frame[output]) for name, output in OUTPUTS.items()}
        return {name: array.reshape(*self._sizes, *array.shape[2:]) for name, array in arrays.items()}


def meta_of(
    values: Intermediates, tensors: Prepared, size: tuple[int, int], tile_size: int, *, boxes: bool, tiles: bool
) -> Meta:
    """Returns the dictionary `meta` of intermediate results, [.., C, N, ...] or packed [nnz, ...].

    Args:
        values: the values of Gaussians.
        tensors: the inputs of the rendering.
        size: width and height of the pictures, pixels.
        tile_size: pixels.
        boxes: list the tiles of boxes, not of ellipses, as gsplat does with sigma points.
        tiles: list them at all; a lidar's centres are angles, and meet no tiles of its picture.
    """
    tile_width, tile_height = (math.ceil(extent / tile_size) for extent in size)
    listed: list[Intersections] = []

    def lists() -> Intersections:
        if not listed:
            count = math.prod(tensors.views)
            listed.append(intersect(values.projected(), count, tile_size, tile_width, tile_height, boxes=boxes))
        return listed[0]

    later: dict[str, Callable[[], Any]] = {
        **{name: partial(values.ids, axis) for axis, name in enumerate(("batch_ids", "camera_ids", "gaussian_ids"))},
        **{name: partial(values.__getitem__, name) for name in values.names},
    }
    of_tiles: dict[str, Callable[[], Any]] = {
        "tiles_per_gauss": lambda: lists().tiles_per_gauss.reshape(values["depths"].shape),
        "isect_ids": lambda: lists().isect_ids,
        "flatten_ids": lambda: lists().flatten_ids,
        "isect_offsets": lambda: lists().offsets.reshape(*tensors.views, tile_height, tile_width),
    }
    known = {
        **dict.fromkeys(later),
        "tile_width": tile_width,
        "tile_height": tile_height,
        **dict.fromkeys(of_tiles),
        "width": size[0],
        "height": size[1],
        "tile_size": tile_size,
        "n_batches": math.prod(tensors.batch),
        "n_cameras": tensors.cameras,
    }
    every = {**later, **of_tiles} if tiles else later
    return Meta(known, {name: in_this_mode(compute) for name, compute in every.items()})
