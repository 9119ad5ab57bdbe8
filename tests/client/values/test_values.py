"""Value types: what they accept, what they keep, and how they refuse the rest."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lumigrad.client import Cuboid, InvalidArgument, Spheres
from lumigrad.client.base.arrays import float32_array


def cloud(count: int = 4, channels: int = 3) -> dict[str, np.ndarray]:
    generator = np.random.default_rng(7)
    return {
        "positions": generator.normal(size=(count, 3)).astype(np.float32),
        "colors": generator.random((count, channels)).astype(np.float32),
        "radii": (0.1 + generator.random(count)).astype(np.float32),
    }


@pytest.mark.parametrize(
    "convert",
    [
        lambda array: array.tolist(),
        lambda array: array.astype(np.float64),
        lambda array: np.asfortranarray(array),
        lambda array: torch.from_numpy(array).requires_grad_(),
    ],
    ids=["lists", "float64", "fortran", "torch-with-grad"],
)
def test_anything_array_like_becomes_contiguous_float32(convert):
    given = cloud()
    spheres = Spheres(**{name: convert(array) for name, array in given.items()})
    for name, array in spheres.tensors.items():
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, given[name])


def test_float32_arrays_are_not_copied():
    given = cloud()
    assert np.shares_memory(Spheres(**given).positions, given["positions"])
    # The caller's own array stays as it was.
    assert given["positions"].flags.writeable


def test_optional_opacities_and_sizes():
    given = cloud(5, channels=2)
    spheres = Spheres(**given, opacities=[0, 0.25, 0.5, 0.75, 1])
    assert (len(spheres), spheres.channels) == (5, 2)
    assert list(spheres.tensors) == ["positions", "colors", "radii", "opacities"]
    assert spheres.nbytes == 4 * (15 + 10 + 5 + 5)
    assert "opacities" not in Spheres(**given).tensors
    assert repr(spheres) == "Spheres(5 spheres, 2 channels, with opacities)"


def test_no_spheres_are_a_scene():
    empty = Spheres(np.zeros((0, 3)), np.zeros((0, 3)), np.zeros(0))
    assert len(empty) == 0


def test_bounds_enclose_the_spheres():
    spheres = Spheres([[0, 0, 0], [1, 2, 3]], np.ones((2, 3)), [0.5, 1.0])
    low, high = spheres.bounds
    np.testing.assert_allclose(low, [-0.5, -0.5, -0.5])
    np.testing.assert_allclose(high, [2, 3, 4])


@pytest.mark.parametrize(
    ("change", "field", "text"),
    [
        ({"positions": np.zeros((4, 2))}, "positions", "positions: expected shape [N, 3], got [4, 2]"),
        ({"colors": np.zeros((4, 0))}, "colors", "colors: expected shape [4, K] with K >= 1, got [4, 0]"),
        ({"radii": np.zeros(4)}, "radii", "radii: expected radii > 0, the smallest is 0.0"),
        ({"opacities": [0, 0, 0, 1.5]}, "opacities", "opacities: expected values in [0, 1], got 0.0 to 1.5"),
        ({"positions": [["a"] * 3] * 4}, "positions", "positions: expected numbers of shape [N, 3], got dtype <U1"),
        ({"radii": Cuboid((1, 1, 1))}, "radii", "radii: expected numbers of shape [4], got Cuboid"),
    ],
)
def test_refusals_name_the_argument_what_was_expected_and_what_came(change, field, text):
    with pytest.raises(InvalidArgument) as refused:
        Spheres(**{**cloud(), **change})
    assert str(refused.value) == text
    assert [violation.field for violation in refused.value.violations] == [field]
    assert isinstance(refused.value, ValueError)


def test_objects_that_are_no_arrays_are_refused():
    with pytest.raises(InvalidArgument, match=r"^weights: "):
        float32_array("weights", object(), (3,))
    with pytest.raises(InvalidArgument, match=r"^weights: expected an array of numbers, got list"):
        float32_array("weights", [[1], [2, 3]], ("N", 1))
