"""Training beyond rendering: Adam, and image losses with their gradients."""

from lumigrad.kernels.errors import ArgumentError
from lumigrad.kernels.training.adam import (
    ACTIVATIONS,
    AdamStep,
    Gradient,
    GradientStatistics,
    HarmonicsGradient,
    Parameter,
    PreparedStep,
    adam_step,
    prepare_adam,
    statistics_of,
)
from lumigrad.kernels.training.exposure import apply_exposure, center_exposures, exposure_gradient
from lumigrad.kernels.training.image_loss import PADDINGS, REDUCTIONS, ImageLoss, image_loss, image_loss_values
from lumigrad.kernels.training.plane_losses import (
    NormalLoss,
    PlaneLoss,
    alpha_loss,
    depth_loss,
    mean_term,
    normal_loss,
    plane_loss_value,
)
from lumigrad.kernels.training.poses import apply_pose_update

__all__ = [
    "ACTIVATIONS",
    "PADDINGS",
    "REDUCTIONS",
    "AdamStep",
    "ArgumentError",
    "Gradient",
    "GradientStatistics",
    "HarmonicsGradient",
    "ImageLoss",
    "NormalLoss",
    "Parameter",
    "PlaneLoss",
    "PreparedStep",
    "adam_step",
    "alpha_loss",
    "apply_exposure",
    "apply_pose_update",
    "center_exposures",
    "depth_loss",
    "exposure_gradient",
    "image_loss",
    "image_loss_values",
    "mean_term",
    "normal_loss",
    "plane_loss_value",
    "prepare_adam",
    "statistics_of",
]
