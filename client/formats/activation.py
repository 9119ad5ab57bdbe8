"""Between what files store (logarithms, logits, colours, bytes) and what is rendered."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.client.arrays import Float32

# The constant spherical harmonic, 1 / (2 sqrt(pi)).
SH_0 = 0.28209479177387814
# sigmoid(20) is 1 in float32; an opacity of 0 comes back as 2e-9.
_LARGEST_LOGIT = 20.0

Array = npt.NDArray[Any]


def scales_from_logarithms(logarithms: Array) -> Float32:
    """Exp."""
    return np.exp(logarithms.astype(np.float64)).astype(np.float32)


def logarithms_of_scales(scales: Array) -> Float32:
    """Natural logarithm; of 0 that of the smallest float32."""
    smallest = float(np.finfo(np.float32).tiny)
    return np.log(np.maximum(scales.astype(np.float64), smallest)).astype(np.float32)


def opacities_from_logits(logits: Array) -> Float32:
    """Sigmoid."""
    return np.asarray(1.0 / (1.0 + np.exp(-logits.astype(np.float64))), np.float32)


def logits_of_opacities(opacities: Array) -> Float32:
    """Inverse sigmoid, between -20 and 20."""
    wide = opacities.astype(np.float64)
    with np.errstate(divide="ignore"):
        logits = np.log(wide) - np.log1p(-wide)
    return np.asarray(np.clip(logits, -_LARGEST_LOGIT, _LARGEST_LOGIT), np.float32)


def sh_from_colors(colors: Array) -> Float32:
    """[N, 1, D] coefficients of degree 0 that show the colours [N, D]."""
    return np.asarray((colors.astype(np.float64) - 0.5) / SH_0, np.float32)[:, None]


def colors_of_sh(sh: Array) -> Float32:
    """[N, D] the colours that the coefficients [N, K, D] of degree 0 stand for; may lie outside of 0 to 1."""
    return np.asarray(0.5 + SH_0 * sh[:, 0].astype(np.float64), np.float32)


def to_bytes(fractions: Array) -> npt.NDArray[np.uint8]:
    """0..1 as 0..255, rounded; what lies outside is clipped."""
    return np.rint(np.clip(fractions, 0.0, 1.0) * 255.0).astype(np.uint8)
