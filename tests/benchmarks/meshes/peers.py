"""Open3D and libigl on the scenes of the mesh benchmark, which runs this program in a separate environment.

    python peers.py SCENE.npz

prints JSON: {"open3d": {"build_ms": ..., "near": queries per second, "box": ...}, "libigl": ...}; without those that
cannot be imported.
"""

from __future__ import annotations

import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

THREADS = 2


def median_s(call: Callable[[], object], seconds: float = 2.0, least: int = 3) -> float:
    """The median time of a call, after one that warms up."""
    call()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < least or (time.perf_counter() < until and len(times) < 50):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def open3d_rates(scene: Any) -> dict[str, float]:
    """Closest points, one ray for the sign, and the gradient from them."""
    import libusb_package

    ctypes.CDLL(libusb_package.get_library_path(), mode=ctypes.RTLD_GLOBAL)
    import open3d

    vertices = open3d.core.Tensor(scene["vertices"].astype(np.float32))
    faces = open3d.core.Tensor(scene["faces"].astype(np.uint32))

    def build() -> Any:
        caster = open3d.t.geometry.RaycastingScene(nthreads=THREADS)
        caster.add_triangles(vertices, faces)
        caster.compute_closest_points(open3d.core.Tensor(scene["near"][:1].astype(np.float32)))
        return caster

    rates = {"build_ms": median_s(build, least=1) * 1e3}
    caster = build()
    for kind in ("near", "box"):
        points = scene[kind].astype(np.float32)
        given = open3d.core.Tensor(points)

        def query(points: Any = points, given: Any = given) -> Any:
            closest = caster.compute_closest_points(given, nthreads=THREADS)["points"].numpy()
            inside = caster.compute_occupancy(given, nthreads=THREADS, nsamples=1).numpy()
            way = points - closest
            length = np.sqrt((way * way).sum(axis=1))
            signed = np.where(inside > 0, -length, length)
            return signed, way / np.where(signed == 0, 1, signed)[:, None]

        rates[kind] = len(points) / median_s(query)
    return rates


def libigl_rates(scene: Any) -> dict[str, float]:
    """Signed distances by pseudo-normals, with closest points and normals; without the build that each call repeats."""
    import igl

    vertices, faces = np.asarray(scene["vertices"]), np.asarray(scene["faces"], np.int32)

    def query(points: Any) -> Any:
        return igl.signed_distance(points, vertices, faces, sign_type=igl.SIGNED_DISTANCE_TYPE_PSEUDONORMAL)

    build = median_s(lambda: query(np.asarray(scene["near"][:1])), least=2)
    rates = {"build_ms": build * 1e3}
    for kind in ("near", "box"):
        points = np.asarray(scene[kind])
        rates[kind] = len(points) / max(median_s(lambda points=points: query(points), least=2) - build, 1e-9)
    return rates


if __name__ == "__main__":
    given = np.load(sys.argv[1])
    reached = {}
    for peer, rates_of in (("open3d", open3d_rates), ("libigl", libigl_rates)):
        try:
            reached[peer] = rates_of(given)
        except ImportError as error:
            # Open3D needs libGL of the system.
            print(f"{peer} is left out: {error}", file=sys.stderr)
    print(json.dumps(reached))
