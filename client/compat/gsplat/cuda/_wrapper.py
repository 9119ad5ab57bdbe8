"""The names of `gsplat.cuda._wrapper` that programs import."""

from lumigrad.client.compat.gsplat.covariances import proj, quat_scale_to_covar_preci, world_to_cam
from lumigrad.client.compat.gsplat.harmonics import (
    spherical_harmonics,
    spherical_harmonics_l0,
    spherical_harmonics_l1_plus,
)
from lumigrad.client.compat.gsplat.options import CameraModel
from lumigrad.client.compat.gsplat.parameters import (
    BivariateWindshieldModelParameters,
    ExternalDistortionReferencePolynomial,
    FThetaCameraDistortionParameters,
    FThetaPolynomialType,
    RollingShutterType,
    RowOffsetStructuredSpinningLidarModelParameters,
    RowOffsetStructuredSpinningLidarModelParametersExt,
    SpinningDirection,
    UnscentedTransformParameters,
)
from lumigrad.client.compat.gsplat.projection import fully_fused_projection
from lumigrad.client.compat.gsplat.rasterization import fully_fused_projection_with_ut
from lumigrad.client.compat.gsplat.surfels import fully_fused_projection_2dgs


def _offered() -> bool:
    """Returns True: this part of gsplat is offered here."""
    return True


def _not_offered() -> bool:
    """Returns False: this part of gsplat, functions that only its kernels have, is not offered here."""
    return False


has_2dgs = has_3dgs = has_3dgut = has_adam = has_reloc = _offered
has_camera_wrappers = has_losses = _not_offered
