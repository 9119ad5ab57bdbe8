"""Sensors of PyTorch's operators: gsplat's arguments, with tensors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from lumigrad.client.operators.sensor_arguments import Arrays
from lumigrad.client.operators.sensor_arguments import sensors as sensors_of
from lumigrad.client.operators.sensors import SensorMatrices
from lumigrad.client.torch.gaussian_inputs import Prepared
from lumigrad.client.torch.remote import on_host

_TENSORS = Arrays(
    real=partial(on_host, dtype=torch.float64), single=on_host, repeated=lambda tensor, count: tensor.expand(count, -1)
)


def intrinsics_of(given: Mapping[str, Any]) -> Any:
    """K, or what stands for it with a lidar, which has none."""
    if given["Ks"] is not None or given["camera_model"] != "lidar" or given["viewmats"] is None:
        return given["Ks"]
    return torch.eye(3, dtype=torch.float64).expand(*on_host("viewmats", given["viewmats"]).shape[:-2], 3, 3)


def sensors(
    given: Mapping[str, Any], tensors: Prepared, row_time: Any, lens_domain: Any
) -> tuple[SensorMatrices, dict[str, torch.Tensor]]:
    """The cameras of checked inputs, and the inputs beside the matrices; see `client.operators.sensor_arguments`."""
    return sensors_of(given, tensors.views, _TENSORS, row_time, lens_domain)
