"""Fixtures that several layers share: the machines on which the sphere engine is tested."""

from __future__ import annotations

import pytest
import torch

from support.engines import ENGINES, Engine


def _machines() -> list[object]:
    names = [name for name in ENGINES if name != "gpu" or torch.cuda.is_available()]
    return [pytest.param(name, marks=pytest.mark.gpu) if name == "gpu" else name for name in names]


@pytest.fixture(params=_machines())
def engine(request: pytest.FixtureRequest) -> Engine:
    """One machine after the other; a GPU only where there is one."""
    return ENGINES[request.param]()
