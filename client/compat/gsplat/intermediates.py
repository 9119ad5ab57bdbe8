"""What gsplat returns beside the pictures: projected Gaussians, and the lists of tiles that they touch."""

from __future__ import annotations

import math

import torch

from lumigrad.client.compat.gsplat.meta import Meta
from lumigrad.client.compat.gsplat.tiles import Intersections, Projected, intersect
from lumigrad.client.torch.gaussian_function import PROJECTED, Layout, Rendering
from lumigrad.client.torch.gaussian_inputs import Prepared
from lumigrad.client.torch.refusal import refuse_backward

# Their names in the contract and in gsplat.
_WITHOUT_GRADIENT = {"depths": "depths", "conics": "conics", "projected_opacities": "opacities"}


def intermediates(rendering: Rendering, centres: torch.Tensor, tensors: Prepared, tile_size: int) -> Meta:
    """The dictionary, with gsplat's names; [.., C, N, ...] or packed [nnz, ...].

    Args:
        rendering: finished, with all outputs per Gaussian.
        centres: the projected centres, part of the graph.
        tensors: what was rendered.
        tile_size: pixels.
    """
    frame, layout = rendering.frame, rendering.layout
    camera = frame.request.cameras[0]
    tile_width, tile_height = math.ceil(camera.width / tile_size), math.ceil(camera.height / tile_size)
    arrays = {key: layout.arrange(frame[name]) for name, key in _WITHOUT_GRADIENT.items()}
    radii = layout.arrange(frame.radii)
    lists = _TileLists({**arrays, "radii": radii, "means2d": centres.detach()}, layout, tile_size)
    shape = arrays["depths"].shape
    values = {
        **_ids(layout, tensors),
        "radii": radii,
        "means2d": centres,
        **{key: _without_gradient(array, key, tensors) for key, array in arrays.items()},
        "tile_width": tile_width,
        "tile_height": tile_height,
        **dict.fromkeys(("tiles_per_gauss", "isect_ids", "flatten_ids", "isect_offsets")),
        "width": camera.width,
        "height": camera.height,
        "tile_size": tile_size,
        "n_batches": math.prod(tensors.batch),
        "n_cameras": tensors.cameras,
    }
    later = {
        "tiles_per_gauss": lambda: lists.found(tile_width, tile_height).tiles_per_gauss.reshape(shape),
        "isect_ids": lambda: lists.found(tile_width, tile_height).isect_ids,
        "flatten_ids": lambda: lists.found(tile_width, tile_height).flatten_ids,
        "isect_offsets": lambda: lists.found(tile_width, tile_height).offsets.reshape(
            *tensors.views, tile_height, tile_width
        ),
    }
    return Meta(values, later)


def _without_gradient(array: torch.Tensor, key: str, tensors: Prepared) -> torch.Tensor:
    """In gsplat it has one, so here backward through it is an error.

    Workers take gradients of images and of the projected means, not of these. Without a gradient a loss on them would
    leave the scene untouched and say nothing.
    """
    sources = [tensors.inputs[name] for name in (*PROJECTED, "opacities")]
    differentiable = [tensor for tensor in sources if tensor is not None and tensor.requires_grad]
    if not (torch.is_grad_enabled() and differentiable):
        return array
    error = NotImplementedError(
        f'meta["{key}"] has no gradient here; pass it on with .detach(), or use meta["means2d"], which has one'
    )
    return refuse_backward(array, differentiable, error)


def _ids(layout: Layout, tensors: Prepared) -> dict[str, torch.Tensor | None]:
    """Which scene, camera and Gaussian each packed row is of; None where nothing is packed."""
    names = ("batch_ids", "camera_ids", "gaussian_ids")
    if layout.visible is None:
        return dict.fromkeys(names)
    view = layout.visible // tensors.count
    ids = (view // tensors.cameras, view % tensors.cameras, layout.visible % tensors.count)
    return {name: values.to(layout.device) for name, values in zip(names, ids, strict=True)}


class _TileLists:
    """The lists of tiles of a rendering, computed once, when they are needed."""

    def __init__(self, arrays: dict[str, torch.Tensor], layout: Layout, tile_size: int) -> None:
        self._arrays = arrays
        self._layout = layout
        self._tile_size = tile_size
        self._found: Intersections | None = None

    def found(self, tile_width: int, tile_height: int) -> Intersections:
        """The lists, for so many tiles in a row and in a column."""
        if self._found is None:
            layout = self._layout
            axes = 1 if layout.visible is not None else len(layout.shape)
            flat = {name: array.reshape(-1, *array.shape[axes:]) for name, array in self._arrays.items()}
            rows = torch.arange(len(flat["depths"])) if layout.visible is None else layout.visible
            projected = Projected((rows // layout.shape[-1]).to(layout.device), **flat)
            images = math.prod(layout.shape[:-1])
            self._found = intersect(projected, images, self._tile_size, tile_width, tile_height)
        return self._found
