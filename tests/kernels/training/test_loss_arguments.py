"""Arguments that losses refuse, and the errors."""

from __future__ import annotations

import math

import pytest
import torch

from lumigrad.kernels.training import ArgumentError, image_loss

IMAGE = torch.zeros(2, 12, 14, 3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": None}, r"image: expected a float32 tensor of shape \[any, any, any, any\], got NoneType"),
        ({"image": torch.zeros(12, 14, 3)}, r"image: .*, got float32 of shape \[12, 14, 3\]"),
        ({"image": IMAGE.double()}, r"image: .*, got float64 of shape \[2, 12, 14, 3\]"),
        (
            {"image": torch.zeros(0, 12, 14, 3)},
            r"image: expected \[C, H, W, K\] with at least one view and channel, and 1",
        ),
        ({"image": torch.zeros(1, 1, 32769, 1)}, r"image: .* 1 to 32768 pixels each way, got shape \[1, 1, 32769, 1\]"),
        ({"target": torch.zeros(2, 12, 14)}, r"target: expected a float32 or uint8 tensor of shape \[2, 12, 14, 3\]"),
        ({"target": IMAGE.to("meta")}, "target: expected a tensor on cpu, where the others are, got one on meta"),
        ({"mask": IMAGE}, r"mask: expected a float32 or uint8 or bool tensor of shape \[2, 12, 14\], got float32 of"),
        ({"l1": -0.1}, "l1: expected a finite number >= 0, got -0.1"),
        ({"l2": math.nan}, "l2: expected a finite number >= 0, got nan"),
        ({"dssim": "much"}, "dssim: expected a finite number >= 0, got 'much'"),
        ({"padding": "zeros"}, r"padding: expected one of \('same', 'valid'\), got 'zeros'"),
        ({"reduction": "none"}, r"reduction: expected one of \('mean', 'sum'\), got 'none'"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        image_loss(**{"image": IMAGE, "target": IMAGE, **change})  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [(10, 30), (30, 10), (1, 1)])
def test_windows_within_the_image_need_room(size: tuple[int, int]) -> None:
    image = torch.zeros(1, *size, 3)
    with pytest.raises(ArgumentError, match=r"image: expected at least 11x11 pixels for valid padding, got shape"):
        image_loss(image, image, padding="valid")
    assert image_loss(image, image, padding="valid", dssim=0.0).values()["total"] == 0.0
