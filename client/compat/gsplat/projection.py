"""gsplat's `fully_fused_projection` in plain torch: Gaussians projected to ellipses by the Jacobian of the camera.

Formulas: Zwicker et al., "EWA volume splatting", 2001; the blur's compensation: Yu et al., "Mip-Splatting", 2024.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import check_shape
from lumigrad.client.compat.gsplat.options import GsplatArgumentError, gsplat_refusals
from lumigrad.client.values.quaternions import matrices, matrix_rows

# gsplat cuts ellipses off at this many standard deviations.
LARGEST_EXTENT = 3.33
_LEAST_ALPHA = 1 / 255
# Least square of the compensation of opacities.
_LEAST_RATIO = 2.5e-5
# Least square of a quaternion: a smaller one has no direction.
_LEAST_SQUARE = 1e-24
# How far beyond the picture the Jacobian of a pinhole follows points, in widths of half the picture.
_BEYOND = 0.3
# Below this square of the tangent of the angle from the axis, a fisheye's factors come from their series.
_NEAR_AXIS = 0.01
_SERIES = 8


@dataclass(frozen=True)
class Film:
    """Limits of the ellipses that are kept.

    Attributes:
        width: picture width, pixels.
        height: picture height, pixels.
        eps2d: blur in the picture, pixels squared.
        near: least depth shown, scene units.
        far: largest depth shown, scene units.
        radius_clip: Gaussians with radii of at most this many pixels are not shown.
        camera_model: "pinhole", "ortho" or "fisheye".
        antialiased: opacities, by which ellipses are cut off, are compensated for the blur.
    """

    width: int
    height: int
    eps2d: float
    near: float
    far: float
    radius_clip: float
    camera_model: str
    antialiased: bool


@dataclass(frozen=True)
class Ellipses:
    """Projected Gaussians; 0 where they are culled.

    Attributes:
        radii: int32 [..., 2] half extents, pixels.
        means2d: [..., 2] centres, pixels.
        depths: [...] along the camera's z axis, scene units.
        conics: [..., 3] inverse covariances (xx, xy, yy).
        compensations: [...] factors of opacities that make up for the blur.
    """

    radii: torch.Tensor
    means2d: torch.Tensor
    depths: torch.Tensor
    conics: torch.Tensor
    compensations: torch.Tensor

    @property
    def visible(self) -> torch.Tensor:
        """Whether each Gaussian is not culled, bool [...]."""
        return (self.radii > 0).all(dim=-1)


@dataclass(frozen=True)
class Bodies:
    """Gaussians in the world, each tensor with leading sizes that broadcast with those of the cameras.

    Attributes:
        means: [..., 3].
        covars: [..., 6] covariances (xx, xy, xz, yy, yz, zz); or None, and
        quats: [..., 4] rotations (w, x, y, z), of any length,
        scales: [..., 3] standard deviations.
        opacities: [...]; None: ellipses end at `LARGEST_EXTENT`.
    """

    means: torch.Tensor
    covars: torch.Tensor | None
    quats: torch.Tensor | None
    scales: torch.Tensor | None
    opacities: torch.Tensor | None

    def mapped(self, change: Callable[[torch.Tensor], torch.Tensor]) -> Bodies:
        """Returns a copy with all tensors changed."""
        return Bodies(*(None if value is None else change(value) for value in vars(self).values()))  # type: ignore[arg-type]


def fully_fused_projection(
    means: torch.Tensor,
    covars: torch.Tensor | None,
    quats: torch.Tensor | None,
    scales: torch.Tensor | None,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    packed: bool = False,
    sparse_grad: bool = False,
    calc_compensations: bool = False,
    camera_model: str = "pinhole",
    opacities: torch.Tensor | None = None,
) -> tuple[torch.Tensor | None, ...]:
    """Projects Gaussians to ellipses in pictures, on the device of the tensors; no worker is called.

    All results but radii and indices have gradients, of the first and of higher orders, to every tensor: unlike the
    original's also to Ks.

    The arguments are those of `rasterization`, all float32 or all float64, but `covars` are [.., N, 6] (xx, xy, xz, yy,
    yz, zz). With `packed` results hold visible Gaussians only, [nnz, ...]; `sparse_grad` needs it, and no leading
    sizes. With `calc_compensations` the factors of opacities that make up for the blur are computed, too. Where
    `opacities` are given, ellipses end where their alpha falls below 1/255, else at 3.33 standard deviations.

    Returns:
        radii int32 [.., C, N, 2], pixels; means2d [.., C, N, 2], pixels; depths [.., C, N]; conics [.., C, N, 3],
        inverse covariances (xx, xy, yy); compensations [.., C, N] or None. Entries of culled Gaussians are 0. With
        `packed` before these: batch_ids, camera_ids, gaussian_ids int64 [nnz], and indptr int32 [B C + 1], where the
        rows of each camera begin.

    Raises:
        GsplatArgumentError: an argument is invalid.

    Example:
        radii, means2d, depths, conics, _ = fully_fused_projection(means, None, quats, scales, viewmats, Ks, 300, 200)
    """
    with gsplat_refusals():
        one_of("camera_model", camera_model, ("pinhole", "ortho", "fisheye"))
        batch = _check(means, covars, quats, scales, viewmats, Ks, opacities)
    film = Film(width, height, eps2d, near_plane, far_plane, radius_clip, camera_model, calc_compensations)
    if covars is not None:
        quats = scales = None
    bodies = Bodies(means, covars, quats, scales, opacities)
    if not packed:
        if sparse_grad:
            raise GsplatArgumentError.of("sparse_grad", "expected False without packed=True, got True")
        found = project(bodies, viewmats, Ks, film)
        shown = found.compensations if calc_compensations else None
        return found.radii, found.means2d, found.depths, found.conics, shown
    if sparse_grad and batch:
        text = f"expected False with leading sizes {list(batch)}, got True; call it once for each scene"
        raise GsplatArgumentError.of("sparse_grad", text)
    with torch.no_grad():
        visible = project(bodies, viewmats, Ks, film).visible
    cameras = viewmats.shape[-3]
    ids = visible.flatten(0, -3).nonzero().unbind(-1) if batch else visible[None].nonzero().unbind(-1)
    rows = bodies.mapped(lambda value: _rows(value, batch, ids, sparse_grad)[:, None])
    views = ids[0] * cameras + ids[1]
    of_rows = (viewmats.reshape(-1, 1, 4, 4)[views], Ks.reshape(-1, 1, 3, 3)[views])
    found = project(rows, *of_rows, film)
    found = replace(found, **{name: value[:, 0, 0] for name, value in vars(found).items()})
    indptr = visible.flatten(0, -2).sum(-1).cumsum(0).int()
    indptr = torch.nn.functional.pad(indptr, (1, 0))
    shown = found.compensations if calc_compensations else None
    return *ids, indptr, found.radii, found.means2d, found.depths, found.conics, shown


# Matrices are lists of rows of tensors [.., C, N], since operations along last axes of two or three are slow. Entries
# that are always 0 are numbers.
Row = Sequence[torch.Tensor | float]


@dataclass(frozen=True)
class Located:
    """Centres in pictures.

    Attributes:
        visible: bool [.., C, N], whether centres are in the range of depths; others are placed at depth 1 on the axis.
        pixels: two tensors [.., C, N].
        depths: [.., C, N] along the camera's z axis, scene units.
        rows: two rows of three entries: derivatives of the pixels by points in the world.
    """

    visible: torch.Tensor
    pixels: tuple[torch.Tensor, torch.Tensor]
    depths: torch.Tensor
    rows: Sequence[Row]


def locate(means: torch.Tensor, viewmats: torch.Tensor, Ks: torch.Tensor, film: Film) -> Located:
    """Projects points [.., N, 3] to cameras [.., C]; the arguments are not checked."""
    means = means.unsqueeze(viewmats.ndim - 3)
    viewmats, Ks = (matrices.to(means.dtype)[..., None] for matrices in (viewmats, Ks))
    turns = [[viewmats[..., row, column, :] for column in range(3)] for row in range(3)]
    points = [_dot(turn, means.unbind(-1)) + viewmats[..., row, 3, :] for row, turn in enumerate(turns)]
    visible = (points[2] >= film.near) & (points[2] <= film.far)
    if film.camera_model != "ortho":
        visible = visible & (points[2] > 1e-12)
    # Values and derivatives computed from these must stay finite.
    x, y, z = (torch.where(visible, value, float(axis == 2)) for axis, value in enumerate(points))
    pixels, jacobian = CAMERAS[film.camera_model](x, y, z, Ks, film)
    columns = list(zip(*turns, strict=True))
    return Located(visible, pixels, z, [[_dot(row, column) for column in columns] for row in jacobian])


def project(bodies: Bodies, viewmats: torch.Tensor, Ks: torch.Tensor, film: Film) -> Ellipses:
    """Returns the ellipses [.., C, N] of Gaussians [.., N] in cameras [.., C]; the arguments are not checked."""
    located = locate(bodies.means, viewmats, Ks, film)
    bodies = bodies.mapped(lambda value: value.unsqueeze(viewmats.ndim - 3))
    visible, pixels, z = located.visible, located.pixels, located.depths
    rows = located.rows
    xx, xy, yy, sharp = _covariances(bodies, rows)
    determinants = sharp + film.eps2d * (xx + yy + film.eps2d)
    xx, yy = xx + film.eps2d, yy + film.eps2d
    visible = visible & (determinants > 0)
    inverse = 1.0 / torch.where(visible, determinants, 1.0)
    compensations = (sharp * inverse).clamp_min(_LEAST_RATIO).sqrt()
    with torch.no_grad():
        radii, reached = _radii(bodies.opacities, compensations, (xx, yy), film)
        visible = visible & reached & ((radii[0] > film.radius_clip) | (radii[1] > film.radius_clip))
        for pixel, radius, size in zip(pixels, radii, (film.width, film.height), strict=True):
            visible = visible & (pixel + radius > 0) & (pixel - radius < size)

    def shown(*values: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.where(visible, value, 0) for value in values], -1)

    return Ellipses(
        shown(*radii).int(),
        shown(*pixels),
        torch.where(visible, z, 0),
        shown(yy * inverse, -xy * inverse, xx * inverse),
        torch.where(visible, compensations, 0),
    )


def _dot(one: Row, other: Row) -> torch.Tensor:
    products = [a * b for a, b in zip(one, other, strict=True) if a is not _ZERO]
    return sum(products[1:], products[0])  # type: ignore[return-value]


_ZERO = 0.0


def _covariances(bodies: Bodies, rows: Sequence[Row]) -> tuple[torch.Tensor, ...]:
    """Returns xx, xy, yy of the covariances in the picture, and their determinants; `rows` map there from the world."""
    if bodies.covars is None:
        assert bodies.quats is not None and bodies.scales is not None
        axes = list(zip(*_rotations(bodies.quats), strict=True))
        scales = bodies.scales.unbind(-1)
        x, y = ([_dot(row, axis) * scale for axis, scale in zip(axes, scales, strict=True)] for row in rows)
        # The determinant as a sum of squares: long ellipses would lose theirs to cancellation.
        pairs = ((0, 1), (1, 2), (2, 0))
        sharp = sum((x[i] * y[j] - x[j] * y[i]).square() for i, j in pairs)
        return _dot(x, x), _dot(x, y), _dot(y, y), sharp  # type: ignore[return-value]
    xx, xy, xz, yy, yz, zz = bodies.covars.unbind(-1)
    matrix = ((xx, xy, xz), (xy, yy, yz), (xz, yz, zz))
    along_x, along_y = ([_dot(row, column) for column in matrix] for row in rows)
    xx, xy, yy = _dot(along_x, rows[0]), _dot(along_x, rows[1]), _dot(along_y, rows[1])
    return xx, xy, yy, (xx.double() * yy.double() - xy.double() ** 2).clamp_min(0).to(xx.dtype)


def _radii(
    opacities: torch.Tensor | None, compensations: torch.Tensor, variances: Sequence[torch.Tensor], film: Film
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Returns whole radii along x and y, and whether any pixel could reach the least alpha."""
    extent: torch.Tensor | float = LARGEST_EXTENT
    reached = torch.ones_like(compensations, dtype=torch.bool)
    if opacities is not None:
        shown = opacities * compensations if film.antialiased else opacities
        reached = (shown >= _LEAST_ALPHA).expand_as(reached)
        extent = (2.0 * torch.log((shown / _LEAST_ALPHA).clamp_min(1.0))).sqrt().clamp_max(LARGEST_EXTENT)
    return [(extent * variance.clamp_min(0).sqrt()).ceil().clamp_max(1e6) for variance in variances], reached


Seen = tuple[tuple[torch.Tensor, torch.Tensor], tuple[Row, Row]]


def _pinhole(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, Ks: torch.Tensor, film: Film) -> Seen:
    """Returns pixels, and their derivatives by the point in the camera's frame."""
    inverse = 1.0 / z
    pixels, slopes, last = [], [], []
    for axis, (value, size) in enumerate(((x, film.width), (y, film.height))):
        focal, centre = Ks[..., axis, axis, :], Ks[..., axis, 2, :]
        tangent, beyond = value * inverse, _BEYOND * 0.5 * size / focal
        held = torch.minimum(torch.maximum(tangent, -centre / focal - beyond), (size - centre) / focal + beyond)
        slope = focal * inverse
        pixels.append(focal * tangent + centre)
        slopes.append(slope)
        last.append(-slope * held)
    return (pixels[0], pixels[1]), ((slopes[0], _ZERO, last[0]), (_ZERO, slopes[1], last[1]))


def _ortho(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, Ks: torch.Tensor, film: Film) -> Seen:
    fx, fy = (Ks[..., axis, axis, :].expand_as(z) for axis in range(2))
    pixels = fx * x + Ks[..., 0, 2, :], fy * y + Ks[..., 1, 2, :]
    return pixels, ((fx, _ZERO, _ZERO), (_ZERO, fy, _ZERO))


def _fisheye(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, Ks: torch.Tensor, film: Film) -> Seen:
    """Projects equidistantly: pixels grow with the angle from the axis, by `kappa` = angle / radius."""
    (fx, cx), (fy, cy) = ((Ks[..., axis, axis, :], Ks[..., axis, 2, :]) for axis in range(2))
    squares = x * x + y * y
    kappa, slope = _equidistant(squares, z)
    skew, inverse = x * y * slope, 1.0 / (squares + z * z)
    return (fx * x * kappa + cx, fy * y * kappa + cy), (
        (fx * (kappa + x * x * slope), fx * skew, -fx * x * inverse),
        (fy * skew, fy * (kappa + y * y * slope), -fy * y * inverse),
    )


def _equidistant(squares: torch.Tensor, z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns atan(r / z) / r, and its derivative by r over r, given squares of r; by series where these cancel."""
    tangent = squares / (z * z)
    is_near = tangent < _NEAR_AXIS
    small = torch.where(is_near, tangent, 0.0)
    kappa_near, slope_near = torch.zeros_like(z), torch.zeros_like(z)
    for power in range(_SERIES, -1, -1):
        factor = (-1.0) ** power / (2 * power + 1)
        kappa_near = kappa_near * small + factor
        if power:
            slope_near = slope_near * small + 2 * power * factor
    radius = torch.where(is_near, 1.0, squares).sqrt()
    kappa = torch.atan2(radius, z) / radius
    slope = (z / (radius * radius + z * z) - kappa) / (radius * radius)
    return torch.where(is_near, kappa_near / z, kappa), torch.where(is_near, slope_near / z**3, slope)


# Pixels and derivatives of points in the frame of a camera, by its model.
CAMERAS = {"pinhole": _pinhole, "ortho": _ortho, "fisheye": _fisheye}


def _rotations(quats: torch.Tensor) -> tuple[tuple[torch.Tensor, ...], ...]:
    """Returns rows of the rotation matrices of quaternions [..., 4] (w, x, y, z) of any length."""
    w, x, y, z = quats.unbind(-1)
    inverse = (w * w + x * x + y * y + z * z).clamp_min(_LEAST_SQUARE).rsqrt()
    w, x, y, z = w * inverse, x * inverse, y * inverse, z * inverse
    return matrix_rows(w, x, y, z)


def rotations(quats: torch.Tensor) -> torch.Tensor:
    """Returns rotation matrices [..., 3, 3] of quaternions [..., 4] (w, x, y, z) of any length."""
    return matrices(_rotations(quats), torch.stack)  # type: ignore[no-any-return]


def _rows(tensor: torch.Tensor, batch: tuple[int, ...], ids: tuple[torch.Tensor, ...], sparse: bool) -> torch.Tensor:
    """Returns the rows of visible Gaussians; the gradient of the tensor is sparse on request."""
    scene, _, gaussian = ids
    if sparse:
        flat = tensor if tensor.ndim == 2 else tensor[:, None]
        return torch.nn.functional.embedding(gaussian, flat, sparse=True).reshape(len(gaussian), *tensor.shape[1:])
    flat = tensor.reshape(math.prod(batch), *tensor.shape[len(batch) :])
    return flat[scene, gaussian]


def _check(
    means: torch.Tensor,
    covars: torch.Tensor | None,
    quats: torch.Tensor | None,
    scales: torch.Tensor | None,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    opacities: torch.Tensor | None,
) -> tuple[int, ...]:
    """Checks the arguments; returns their leading sizes."""
    check_shape("means", means.shape, (..., "N", 3))
    *batch, count, _ = means.shape
    if covars is None:
        for name, value, size in (("quats", quats, 4), ("scales", scales, 3)):
            if value is None:
                raise GsplatArgumentError.of(name, "expected a tensor, got None; pass it, or covars")
            check_shape(name, value.shape, (*batch, count, size))
    else:
        check_shape("covars", covars.shape, (*batch, count, 6))
    check_shape("viewmats", viewmats.shape, (*batch, "C", 4, 4))
    check_shape("Ks", Ks.shape, (*batch, viewmats.shape[-3], 3, 3))
    if opacities is not None:
        check_shape("opacities", opacities.shape, (*batch, count))
    return tuple(batch)
