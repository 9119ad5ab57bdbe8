"""Renderings of Gaussians for the torch and JAX operators, with cameras from differentiable matrices."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lumigrad.client.base.arrays import Array, Float64, to_numpy
from lumigrad.client.base.timings import Gradients
from lumigrad.client.client import Client
from lumigrad.client.errors import InvalidArgument
from lumigrad.client.operators.call import RemoteCall, scene_of
from lumigrad.client.operators.sensors import LENS_INPUTS, RAYS, SensorMatrices
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import RenderRequest, WireFormat
from lumigrad.client.settings.gaussians import GaussianSettings, Transform
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import Projection
from lumigrad.client.values.gaussians import Gaussians
from lumigrad.client.values.handle import SceneHandle

# The names of the arrays that cameras are made of.
CAMERA_INPUTS = ("view", "projection", "position", "view_end")


@dataclass(frozen=True)
class ViewMatrices:
    """OpenCV's cameras: "view" [.., 4, 4] are view matrices, "projection" [.., 3, 3] the intrinsics K.

    `width` and `height` are in pixels; `distortion` has one row of coefficients per camera, or no rows.
    """

    width: int
    height: int
    model: Projection = "pinhole"
    distortion: tuple[tuple[float, ...], ...] = ()

    def cameras(self, inputs: Mapping[str, Array | None]) -> tuple[Camera, ...]:
        """Returns one camera for each pair of matrices."""
        views, intrinsics = _present(inputs["view"]).reshape(-1, 4, 4), _present(inputs["projection"]).reshape(-1, 3, 3)
        cameras = []
        for view, k, row in zip(views, intrinsics, self.distortion or ((),) * len(views), strict=True):
            numbers = (k[0, 0], k[1, 1], k[0, 2], k[1, 2], view[:3, :3], view[:3, 3])
            cameras.append(Camera.opencv(*numbers, self.width, self.height, model=self.model, distortion=row))
        return tuple(cameras)

    def gradients(self, found: Gradients) -> dict[str, Array]:
        """Returns the gradients of the matrices; those of a view's last row and of K's fixed entries are 0."""
        count = len(found.camera_intrinsics)
        view, intrinsics = np.zeros((count, 4, 4), np.float32), np.zeros((count, 3, 3), np.float32)
        view[:, :3, :3], view[:, :3, 3] = found.camera_rotation, found.camera_translation
        intrinsics[:, (0, 1, 0, 1), (0, 1, 2, 2)] = found.camera_intrinsics
        return {"view": view, "projection": intrinsics}


_OF_INRIA = CAMERA_INPUTS[:3]


@dataclass(frozen=True)
class InriaMatrices:
    """Inria's camera: "view" and "projection" are its two matrices [4, 4], "position" [3] is its centre.

    `width` and `height` are in pixels; `tan_fov_x` and `tan_fov_y` are tangents of half the field of view.
    """

    width: int
    height: int
    tan_fov_x: float
    tan_fov_y: float

    def cameras(self, inputs: Mapping[str, Array | None]) -> tuple[Camera, ...]:
        """Returns the camera of the matrices."""
        view, projection, position = (_present(inputs[name]) for name in _OF_INRIA)
        size = self.width, self.height
        return (Camera.inria(view, projection, position, self.tan_fov_x, self.tan_fov_y, *size),)

    def gradients(self, found: Gradients) -> dict[str, Array]:
        """Returns the gradients of the matrices, unchanged from the worker."""
        arrays = (found.camera_view, found.camera_projection, found.camera_position)
        return dict(zip(_OF_INRIA, arrays, strict=True))


def check_matrices(viewmats: Array, intrinsics: Array) -> None:
    """Raises InvalidArgument for matrices [.., 4, 4] and Ks [.., 3, 3] whose fixed entries are wrong."""
    for name, matrices in (("viewmats", viewmats), ("Ks", intrinsics)):
        if not np.isfinite(matrices).all():
            raise InvalidArgument.of(name, "expected finite values, got some that are nan or infinite")
    if not np.allclose(viewmats[..., 3, :], (0.0, 0.0, 0.0, 1.0), atol=1e-6):
        text = "expected 0 0 0 1 as the last row of each; transpose matrices for row vectors"
        raise InvalidArgument.of("viewmats", text)
    expected = "expected fx 0 cx, 0 fy cy, 0 0 1 in each, got"
    if intrinsics[..., (0, 1), (1, 0)].any():
        raise InvalidArgument.of("Ks", f"{expected} skew, which no camera has here; leave it out")
    rows = intrinsics[..., 2, :].reshape(-1, 3)
    wrong = rows[~np.isclose(rows, (0.0, 0.0, 1.0), atol=1e-6).all(axis=-1)]
    if len(wrong):
        advice = "divide each by its last entry" if not wrong[:, :2].any() and wrong[:, 2].all() else "pass K alone"
        raise InvalidArgument.of("Ks", f"{expected} the last row {wrong[0].tolist()}; {advice}")


def distortion_rows(distortion: Any, cameras: int) -> tuple[tuple[float, ...], ...]:
    """Returns rows of coefficients from [k], which all cameras share, or [.., C, k]; empty for None."""
    if distortion is None:
        return ()
    array: Float64 = np.asarray(to_numpy("distortion", distortion), np.float64)
    if array.ndim == 1:
        array = np.broadcast_to(array, (cameras, len(array)))
    rows = array.reshape(-1, array.shape[-1])
    if len(rows) != cameras:
        raise InvalidArgument.of(
            "distortion", f"expected [k] or one row for each of {cameras} cameras, got {list(array.shape)}"
        )
    return tuple(tuple(row) for row in rows.tolist())


def _present(array: Array | None) -> Array:
    assert array is not None
    return array


# The tensors of the scene, named as in the protocol.
SCENE_INPUTS = ("means", "quats", "scales", "covariances", "opacities", "sh", "colors")
# The matrices [T, 4, 4] of slices, and those at the end of the exposure, None if no slice moves.
TRANSFORM_INPUTS = ("transforms", "transforms_end")
# All differentiable inputs of a rendering.
INPUTS = (*SCENE_INPUTS, "background", *TRANSFORM_INPUTS, *CAMERA_INPUTS, *LENS_INPUTS, RAYS)
# The images through which gradients flow.
IMAGES = (
    *("color", "transmittance", "depth", "inverse_depth", "hit_distance", "normals", "median_depth", "distortion"),
)
# The default outputs of the operators.
OUTPUTS = ("color", "alpha", "depth", "expected_depth", "transmittance")
# Outputs that are cheap to compute from others and therefore not transferred.
_SOURCES = {
    "alpha": ("transmittance",),
    "expected_depth": ("depth", "transmittance"),
    "expected_hit_distance": ("hit_distance", "transmittance"),
    "surface_normals": ("depth", "transmittance"),
}
_ON_RAYS = ("hit_distance", "expected_hit_distance", "normals")
# Lower bound of the alpha by which expected depths are divided.
_LEAST_ALPHA = 1e-10
# Rows and columns of the six numbers of a symmetric matrix, in the order of the protocol.
ROWS, COLUMNS = (0, 0, 0, 1, 1, 2), (0, 1, 2, 1, 2, 2)


@dataclass(frozen=True)
class GaussianCall(RemoteCall):
    """A rendering of Gaussians; see `RemoteCall`.

    Attributes:
        client: the client to use.
        settings: the engine's settings; a background and transforms among the inputs replace the ones here.
        cameras: makes the cameras from their matrices.
        outputs: the outputs to transfer.
        batch: the leading sizes of the scene's inputs, one scene for each index; empty: a single scene.
        slices: (begin, end) of each transform.
        moving: indices of the transforms with a matrix at the end of the exposure, as in "transforms_end".
        gradient_format: wire format of gradients per Gaussian.
        sparse: transfer only nonzero rows of gradients.
        spread: divide the cameras among several workers.
        scene: a stored scene, which supplies the scene's inputs that are None.
    """

    client: Client
    settings: GaussianSettings
    cameras: ViewMatrices | InriaMatrices | SensorMatrices
    outputs: tuple[str, ...]
    batch: tuple[int, ...] = ()
    slices: tuple[tuple[int, int], ...] = ()
    moving: tuple[int, ...] = ()
    gradient_format: WireFormat = "float32"
    sparse: bool = False
    spread: bool = False
    scene: SceneHandle | None = None

    @property
    def differentiable(self) -> frozenset[str]:
        """Outputs through which gradients flow."""
        return frozenset((*IMAGES, "means2d"))

    def run(self, inputs: Mapping[str, Array | None], retain: bool) -> Frame:
        """Renders all cameras; results have one camera axis, beginning with the cameras of the first scene.

        Args:
            inputs: arrays by the names of `INPUTS`: the scene's tensors with the leading sizes `batch`, float32;
                background [D] or [.., C, D], transforms [T, 4, 4], transforms_end [M, 4, 4], and the arrays that
                `cameras` expects.
            retain: keep the forward state for a backward pass.
        """
        return self.client._rendered(self.request(inputs), retain, self.spread)

    def request(self, inputs: Mapping[str, Array | None]) -> RenderRequest:
        """Returns the request of the rendering, for the inputs of `run`."""
        views = inputs["view"]
        if views is not None and not views.size:
            raise InvalidArgument.of("viewmats", f"expected at least one, got shape {list(views.shape)}")
        tensors = {name: inputs[name] for name in SCENE_INPUTS}
        if self.batch:
            scenes, rest = math.prod(self.batch), len(self.batch)
            tensors = {
                name: None if array is None else array.reshape(scenes, *array.shape[rest:])
                for name, array in tensors.items()
            }
        scene, own = scene_of(self.scene, Gaussians, tensors)
        settings = self.settings
        if self.slices:
            settings = replace(settings, transforms=self._transforms(inputs))
        if (background := inputs["background"]) is not None:
            settings = replace(settings, background=tuple(background.ravel().tolist()))
        cameras = self.cameras.cameras(inputs)
        return RenderRequest(scene, cameras, False, settings, self.outputs, tensors=own)

    def _transforms(self, inputs: Mapping[str, Array | None]) -> list[Transform]:
        starts, ends = (() if (given := inputs.get(name)) is None else given for name in TRANSFORM_INPUTS)
        last = dict(zip(self.moving, ends, strict=True))
        return [
            Transform(begin, end, matrix, last.get(k))
            for k, ((begin, end), matrix) in enumerate(zip(self.slices, starts, strict=True))
        ]

    def gradients(
        self, result: Frame, upstream: Mapping[str, Any], wanted: Sequence[str], release: bool
    ) -> dict[str, Array]:
        """Computes dense gradients; `wanted` may also contain "means2d" and "means2d_abs"."""
        of_cameras = [name for name in wanted if name in (*CAMERA_INPUTS, *LENS_INPUTS)]
        names = [name for name in wanted if name not in (*of_cameras, *TRANSFORM_INPUTS)]
        groups = (("cameras", CAMERA_INPUTS), ("lenses", LENS_INPUTS), ("transforms", TRANSFORM_INPUTS))
        names += [group for group, members in groups if not set(members).isdisjoint(wanted)]
        sparse = self.sparse and any(name in SCENE_INPUTS for name in names)
        found = result.backward(
            **upstream, wanted=names, sparse=sparse, gradient_format=self.gradient_format, release=release
        )
        request = result.request
        arrays = {name: _dense(found, name, request) for name in names if name not in ("cameras", "lenses")}
        if "transforms_end" in wanted:
            arrays["transforms_end"] = found["transforms_end"][list(self.moving)]
        if of_cameras:
            every = self.cameras.gradients(found)
            arrays.update({name: every[name] for name in of_cameras if name in every})
            if isinstance(self.cameras, SensorMatrices):
                # The worker returns no gradients for unused coefficients: a windshield's inverse matters only for rays.
                unused = {
                    name: count for name, count in self.cameras.counts if name in of_cameras and name not in every
                }
                arrays.update({name: np.zeros((len(request.cameras), k), np.float32) for name, k in unused.items()})
        return arrays


def _dense(found: Gradients, name: str, request: RenderRequest) -> Array:
    rows, scene = found[name], request.scene
    target = (scene.tensors if isinstance(scene, Gaussians) else request.tensors).get(name)
    if "index" not in found or target is None or target.size == rows.size:
        return rows
    count = scene.count if isinstance(scene, SceneHandle) else len(scene)
    dense: Array = np.zeros((count, *rows.shape[1:]), rows.dtype)
    dense[found.index] = rows
    return dense


def moving_slices(transforms: Sequence[Sequence[Any]]) -> tuple[int, ...]:
    """Returns the indices of the transforms (begin, end, matrix, matrix_end) that have a `matrix_end`."""
    return tuple(k for k, entry in enumerate(transforms) if len(entry) > 3 and entry[3] is not None)


def used_coefficients(sh_degree: int, stored: int) -> int:
    """Returns how many of the `stored` coefficients of `colors` a degree uses; the rest are not transferred."""
    used = (sh_degree + 1) ** 2
    if not 0 <= sh_degree <= 4 or stored < used:
        raise InvalidArgument.of(
            "sh_degree",
            f"expected a degree from 0 to 4 whose (degree + 1)^2 coefficients colors have, got {sh_degree} and "
            f"{stored} coefficients",
        )
    return used


def travelling(wanted: Iterable[str]) -> tuple[str, ...]:
    """Returns the outputs to transfer, from which the wanted outputs can be computed."""
    return tuple(dict.fromkeys(source for name in wanted for source in _SOURCES.get(name, (name,))))


def with_derived(images: dict[str, Any]) -> dict[str, Any]:
    """Adds the outputs that are computed from those that travel, which are tensors or JAX's arrays."""
    if "transmittance" not in images:
        return images
    alpha = 1.0 - images["transmittance"]
    sums = {name: images[name] for name in ("depth", "hit_distance") if name in images}
    return {**images, "alpha": alpha, **{f"expected_{name}": sums[name] / alpha.clip(_LEAST_ALPHA) for name in sums}}


def check_ray_outputs(settings: GaussianSettings, wanted: Iterable[str]) -> None:
    """Raises InvalidArgument for outputs that need rays if the settings use none; surfels always use rays."""
    for name in wanted:
        if name in _ON_RAYS and settings.response != "ray" and settings.primitive != "surfel":
            raise InvalidArgument.of("outputs", f'{name} needs response="ray"; pass it, or leave {name} out')
