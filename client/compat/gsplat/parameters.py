"""Parameters of sensors as gsplat 1.6 has them; coefficients may be tensors, to which gradients flow."""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import Enum
from typing import Any, ClassVar

import torch


class RollingShutterType(Enum):
    """Order in which the rows or columns of a picture are exposed."""

    ROLLING_TOP_TO_BOTTOM = 0
    ROLLING_LEFT_TO_RIGHT = 1
    ROLLING_BOTTOM_TO_TOP = 2
    ROLLING_RIGHT_TO_LEFT = 3
    GLOBAL = 4


class FThetaPolynomialType(Enum):
    """Polynomial of an f-theta lens that defines it."""

    PIXELDIST_TO_ANGLE = 0
    ANGLE_TO_PIXELDIST = 1


class ExternalDistortionReferencePolynomial(Enum):
    """Polynomials of a windshield that were calibrated; without effect on pictures."""

    FORWARD = 1
    BACKWARD = 2


@dataclass
class FThetaCameraDistortionParameters:
    """An f-theta lens, which all cameras share.

    Attributes:
        reference_poly: which polynomial defines the lens.
        pixeldist_to_angle_poly: [6] coefficients of ascending powers of the distance, pixels.
        angle_to_pixeldist_poly: [6] coefficients of ascending powers of the angle, radians.
        max_angle: largest visible angle from the axis, radians.
        linear_cde: [3] c d e of the map [[c, d], [e, 1]] of the image.
    """

    reference_poly: FThetaPolynomialType
    pixeldist_to_angle_poly: Any
    angle_to_pixeldist_poly: Any
    max_angle: float
    linear_cde: Any = (1.0, 0.0, 0.0)


@dataclass
class UnscentedTransformParameters:
    """The sigma points.

    Attributes:
        alpha: spread: they lie alpha sqrt(3 + kappa) standard deviations from the mean.
        beta: added to the weight of the centre in the covariance, beside 1 - alpha^2.
        kappa: see alpha.
        in_image_margin_factor: points are valid up to this fraction of the image's size outside the image.
        require_all_sigma_points_valid: show Gaussians only if all points are valid.
    """

    alpha: float = 0.1
    beta: float = 2.0
    kappa: float = 0.0
    in_image_margin_factor: float = 0.1
    require_all_sigma_points_valid: bool = False


@dataclass
class BivariateWindshieldModelParameters:
    """Glass in front of a lens, which all cameras share; polynomials of the two angles of a ray.

    Attributes:
        MAX_ORDER: largest degree of the polynomials.
        MAX_COEFFS: most coefficients of one.
        reference_poly: which polynomials were calibrated.
        horizontal_poly: [1, 3, 6, 10, 15 or 21] coefficients, see `lumigrad.client.Windshield`.
        vertical_poly: as horizontal_poly.
        horizontal_poly_inverse: inverse of horizontal_poly, for rays of pixels.
        vertical_poly_inverse: inverse of vertical_poly, for rays of pixels.
    """

    MAX_ORDER: ClassVar[int] = 5
    MAX_COEFFS: ClassVar[int] = 21
    reference_poly: ExternalDistortionReferencePolynomial = ExternalDistortionReferencePolynomial.FORWARD
    horizontal_poly: Any = None
    vertical_poly: Any = None
    horizontal_poly_inverse: Any = None
    vertical_poly_inverse: Any = None


class SpinningDirection(Enum):
    """How a lidar turns, seen from above."""

    CLOCKWISE = 0
    COUNTER_CLOCKWISE = 1


@dataclass(kw_only=True)
class RowOffsetStructuredSpinningLidarModelParameters:
    """A spinning lidar, which all cameras share; angles in radians.

    Attributes:
        row_elevations_rad: [R] elevations of the rows, descending.
        column_azimuths_rad: [C] azimuths of the columns, in the order of spinning.
        row_azimuth_offsets_rad: [R] added to the azimuths of a row.
        spinning_frequency_hz: turns per second; without effect.
        spinning_direction: how it turns.
    """

    row_elevations_rad: Any
    column_azimuths_rad: Any
    row_azimuth_offsets_rad: Any
    spinning_frequency_hz: float = 10.0
    spinning_direction: SpinningDirection = SpinningDirection.CLOCKWISE


@dataclass(frozen=True)
class LidarTiling:
    """How gsplat's kernels cut a lidar's picture into tiles; workers do not, and this is empty."""


class RowOffsetStructuredSpinningLidarModelParametersExt(RowOffsetStructuredSpinningLidarModelParameters):
    """A lidar with the lookup tables of gsplat's kernels, which have no effect here."""

    def __init__(
        self, params: RowOffsetStructuredSpinningLidarModelParameters, angles_to_columns_map: Any, tiling: Any
    ) -> None:
        """Copies the attributes of `params`."""
        super().__init__(
            **{
                field.name: getattr(params, field.name)
                for field in fields(RowOffsetStructuredSpinningLidarModelParameters)
            }
        )
        self.angles_to_columns_map, self.tiling = angles_to_columns_map, tiling


def compute_lidar_tiling(lidar_params: Any, *args: Any, **kwargs: Any) -> LidarTiling:
    """Returns an empty tiling."""
    return LidarTiling()


def compute_lidar_angles_to_columns_map(lidar: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Returns an empty map."""
    return torch.zeros(0, 0, dtype=torch.int32)


@dataclass(frozen=True)
class RendererConfig:
    """Implementation of the evaluation along rays; the base of gsplat's two."""


@dataclass(frozen=True)
class RendererConfig_MixedBatch(RendererConfig):
    """gsplat's default implementation of the evaluation along rays."""


@dataclass(frozen=True)
class RendererConfig_ParallelBatch(RendererConfig):
    """gsplat's other implementation, which `rasterization` accepts with `with_eval3d`; it draws the same pictures."""
