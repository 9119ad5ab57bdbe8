"""Arrays of other libraries come in, and results go out, by DLPack, if possible without copies; spheres of arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Cuboid, Gaussians, InvalidArgument, Mesh, Spheres
from lumigrad.client.base.arrays import float32_array, to_numpy

VALUES = np.arange(12, dtype=np.float32).reshape(4, 3)


class OnlyDlpack:
    """An array that knows no protocol but DLPack."""

    def __init__(self, array: np.ndarray, device: tuple[int, int] = (1, 0)) -> None:
        self.array, self.device = array, device

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


class LikeCupy(OnlyDlpack):
    """An array on a GPU that only `get` converts, like CuPy's."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__(array, (2, 1))

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`.")

    def get(self) -> np.ndarray:
        return self.array.copy()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_dlpack_comes_in_without_a_copy():
    found = float32_array("x", OnlyDlpack(VALUES), ("N", 3))
    np.testing.assert_array_equal(found, VALUES)
    assert address(found) == address(VALUES) and not found.flags.writeable
    spheres = Spheres(OnlyDlpack(VALUES), OnlyDlpack(VALUES), OnlyDlpack(np.ones(4, np.float32)))
    assert address(spheres.positions) == address(VALUES)
    mesh = Mesh(OnlyDlpack(VALUES), OnlyDlpack(np.array([[0, 1, 2]], np.int32)))
    assert address(mesh.vertices) == address(VALUES)


def test_numbers_beyond_float32_are_refused_by_name_without_numpys_warnings():
    with np.errstate(all="raise"), pytest.raises(InvalidArgument, match="vertices: expected finite values"):
        Mesh(1e39 * np.eye(3), [[0, 1, 2]])


def test_arrays_on_a_gpu_come_in_by_their_own_means():
    np.testing.assert_array_equal(float32_array("x", LikeCupy(VALUES)), VALUES)
    with pytest.raises(InvalidArgument) as refused:
        to_numpy("positions", OnlyDlpack(VALUES, (2, 1)))
    assert str(refused.value) == (
        "positions: expected an array on the host, got OnlyDlpack on DLPack device 2:1; copy it to the host first"
    )


def test_torch_comes_in_without_a_copy():
    tensor = torch.from_numpy(VALUES.copy()).requires_grad_()
    assert address(float32_array("x", tensor)) == tensor.data_ptr()
    np.testing.assert_array_equal(float32_array("x", tensor.bfloat16()), VALUES)
    with pytest.raises(InvalidArgument, match="x: expected an array of numbers, got Tensor"):
        to_numpy("x", torch.ones(3).to_sparse())


def test_jax_comes_in_without_a_copy():
    jax = pytest.importorskip("jax", reason="needs the extra jax")
    jnp = jax.numpy
    array = jnp.asarray(VALUES)
    assert address(float32_array("x", array)) == array.unsafe_buffer_pointer()
    np.testing.assert_array_equal(float32_array("x", array.astype(jnp.bfloat16)), VALUES)
    with pytest.raises(InvalidArgument, match="means: expected an array of numbers, got DynamicJaxprTracer") as refused:
        jax.jit(lambda x: float32_array("means", x))(array)
    assert len(str(refused.value)) < 500


def rendered(client: Client) -> dict[str, np.ndarray]:
    """Arrays of all kinds of results."""
    spheres = Spheres(np.zeros((1, 3)), np.ones((1, 3)), np.ones(1))
    camera = Camera.look_at((0, 0, 5), (0, 0, 0), width=16, height=12)
    frame = client.render(spheres, camera, outputs=("color", "sphere_ids"), retain=True)
    gradients = frame.backward(color=np.ones_like(frame.color), wanted=("positions",))
    levels = client.render(spheres, camera, image_format="uint8")
    triangle = Mesh([[0, 0, 0], [1, 0, 0], [0, 1, 0]], [[0, 1, 2]])
    distances = client.query(triangle, [[0.1, 0.1, 0.5, 0.1]], outputs=("distance", "face"))
    return {
        "color": frame.color,
        "sphere_ids": frame.sphere_ids,
        "levels": levels.color,
        "positions": gradients.positions,
        "distance": distances.distance,
        "face": distances.face,
    }


@pytest.mark.parametrize("lane", ["auto", "stream"])
def test_results_go_out_by_dlpack(worker_process: Any, lane: Any):
    """Results are writeable: older versions of DLPack do not know read-only arrays, and refuse them."""
    with Client(worker_process.target, lane=lane) as client:
        results = rendered(client)
    for name, array in results.items():
        assert array.flags.writeable, name
        assert torch.from_dlpack(array).data_ptr() == address(array), name
        assert address(np.from_dlpack(array)) == address(array), name
        assert array.__dlpack__() is not None, name


def test_values_are_read_only_and_go_to_jax_by_a_copy():
    jnp = pytest.importorskip("jax.numpy", reason="needs the extra jax")
    gaussians = Gaussians(VALUES, np.ones((4, 4)), np.ones((4, 3)), np.ones(4), colors=VALUES)
    with pytest.raises(BufferError, match="readonly"):
        gaussians.means.__dlpack__()
    np.testing.assert_array_equal(np.asarray(jnp.asarray(gaussians.means)), VALUES)


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
