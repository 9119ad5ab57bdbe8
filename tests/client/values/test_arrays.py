"""Arrays of other libraries come in, and results go out, by DLPack; without copies where that is possible."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians, InvalidArgument, Mesh, Spheres
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
