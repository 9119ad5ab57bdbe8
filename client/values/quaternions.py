"""Quaternions (w, x, y, z), rotations and spherical harmonics, with operations that NumPy, torch and JAX share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Stack = Callable[[list[Any], int], Any]


def matrix_rows(w: Any, x: Any, y: Any, z: Any) -> tuple[tuple[Any, Any, Any], ...]:
    """Returns the rows of the rotation matrices of unit quaternions."""
    return (
        (1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        (2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        (2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )


def matrices(rows: Sequence[Sequence[Any]], stack: Stack) -> Any:
    """Stacks rows to matrices [.., 3, 3]."""
    return stack([stack(list(row), -1) for row in rows], -2)


def quaternions(rotations: Any, stack: Stack) -> list[Any]:
    """Returns w, x, y and z [..] of matrices [.., 3 or more, 3 or more], each times 4 times the largest of them."""
    a, b, c, d, e, f, g, h, i = (rotations[..., row, column] for row in range(3) for column in range(3))
    # The matrix 4 q qT. Its row with the largest diagonal entry is the quaternion times at least 2.
    rows = [
        [1 + a + e + i, h - f, c - g, d - b],
        [h - f, 1 + a - e - i, b + d, c + g],
        [c - g, b + d, 1 - a + e - i, f + h],
        [d - b, c + g, f + h, 1 - a - e + i],
    ]
    largest = stack([row[number] for number, row in enumerate(rows)], -1).argmax(-1)
    return [sum((largest == number) * row[column] for number, row in enumerate(rows)) for column in range(4)]


def harmonics(degree: int, x: Any, y: Any, z: Any) -> list[Any]:
    """Returns the (degree + 1)^2 real spherical harmonics of unit vectors, by degree l and then order m from -l to l.

    Each is the product of a Legendre function of z and the real or imaginary part of (x + i y)^|m|, with the sign
    (-1)^m that is usual for Gaussians.
    """
    real, imaginary = [x * 0.0 + 1.0], [x * 0.0]
    for _ in range(degree):
        real, imaginary = (
            [*real, x * real[-1] - y * imaginary[-1]],
            [*imaginary, x * imaginary[-1] + y * real[-1]],
        )
    found: list[Any] = [None] * (degree + 1) ** 2
    for order in range(degree + 1):
        before, legendre = x * 0.0, x * 0.0 + float(math.prod(range(1, 2 * order, 2)))
        for l in range(order, degree + 1):  # noqa: E741
            norm = (2 * l + 1) / (4 * math.pi) * math.factorial(l - order) / math.factorial(l + order)
            scaled = (-1) ** order * math.sqrt(norm * (2 if order else 1)) * legendre
            found[l * l + l - order] = scaled * imaginary[order]
            found[l * l + l + order] = scaled * real[order]
            following = ((2 * l + 1) * z * legendre - (l + order) * before) / (l - order + 1)
            before, legendre = legendre, following
    return found
