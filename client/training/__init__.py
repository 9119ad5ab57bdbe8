"""Training on a worker, which holds the parameters, the optimiser and optionally the loss."""

from lumigrad.client.training.options import AdaptiveDensity, Loss, Mcmc, Rate
from lumigrad.client.training.results import DensityReport, Images, Statistics, StepResult
from lumigrad.client.training.trainer import Batch, LateResult, Trainer

__all__ = [
    "AdaptiveDensity",
    "Batch",
    "DensityReport",
    "Images",
    "LateResult",
    "Loss",
    "Mcmc",
    "Rate",
    "Statistics",
    "StepResult",
    "Trainer",
]
