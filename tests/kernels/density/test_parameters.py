"""Parameters under training that do not fit together are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lumigrad.kernels import ArgumentError
from lumigrad.kernels.density import Parameters
from support.refusals import refused
from support.training.density_clouds import gaussians, spheres

NAN = float("nan")
GAUSSIANS, SPHERES = gaussians(5), spheres(5)
TENSORS: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "no tensor": ("means", {"means": [[0.0] * 3]}, ("[N, 3]", "list")),
    "flat means": ("means", {"means": torch.zeros(15)}, ("[N, 3]", "[15]")),
    "means in a plane": ("means", {"means": torch.zeros(5, 2)}, ("[5, 3]", "[5, 2]")),
    "fewer quats": ("quats", {"quats": torch.zeros(4, 4)}, ("[5, 4]", "[4, 4]")),
    "quats as a list": ("quats", {"quats": [0.0]}, ("[5, 4]", "list")),
    "one scale": ("scales", {"scales": torch.zeros(5)}, ("[5, 3]", "[5]")),
    "opacities in a column": ("opacities", {"opacities": torch.zeros(5, 1)}, ("[5]", "[5, 1]")),
    "half opacities": ("opacities", {"opacities": torch.zeros(5).half()}, ("float32", "float16")),
    "fewer harmonics": ("sh", {"sh": torch.zeros(4, 4, 3)}, ("[5, 4, 3]", "[4, 4, 3]")),
    "a number beside": ("sh", {"sh": torch.tensor(1.0)}, ("[5]", "[]")),
    "elsewhere": ("sh", {"sh": torch.zeros(5, 4, 3, device="meta")}, ("cpu", "meta")),
    "not contiguous": ("scales", {"scales": torch.zeros(3, 5).T}, ("contiguous", "[1, 5]")),
}


@pytest.mark.parametrize("name", TENSORS)
def test_spoiled_tensor_is_named(name: str) -> None:
    argument, change, words = TENSORS[name]
    refused(lambda: Parameters({**GAUSSIANS.tensors, **change}), argument, *words)


@pytest.mark.parametrize(("whole", "missing"), [(GAUSSIANS, "scales"), (GAUSSIANS, "opacities"), (SPHERES, "radii")])
def test_missing_tensor_is_named(whole: Parameters, missing: str) -> None:
    with pytest.raises(ArgumentError, match=rf"^tensors: expected '{missing}' beside"):
        Parameters({name: tensor for name, tensor in whole.tensors.items() if name != missing})


def test_what_is_neither_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^tensors: expected Gaussians with 'means' or spheres with 'positions'"):
        Parameters({"points": torch.zeros(5, 3)})
    with pytest.raises(ArgumentError, match=r"^tensors: expected a mapping by parameter name, got list$"):
        Parameters([torch.zeros(5, 3)])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("moments", "argument"),
    [
        ({"colors": ()}, "moments"),
        ({"means": torch.zeros(5, 3)}, "moments of means"),
        ({"means": (torch.zeros(5, 3), torch.zeros(5))}, "moments of means"),
        ({"scales": (torch.zeros(3, 5).T,)}, "moments of scales"),
    ],
)
def test_spoiled_moments_are_named(moments: dict[str, Any], argument: str) -> None:
    refused(lambda: Parameters(GAUSSIANS.tensors, moments), argument)


def test_kinds_and_counts_are_told_apart() -> None:
    assert GAUSSIANS.gaussians and GAUSSIANS.count == 5
    assert not SPHERES.gaussians and SPHERES.count == 5
    assert Parameters({name: tensor[:0] for name, tensor in GAUSSIANS.tensors.items()}).count == 0
