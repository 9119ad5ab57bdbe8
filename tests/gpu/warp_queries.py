"""Signed distances by NVIDIA Warp; imported only if Warp is installed, which reads this file to compile it."""

from typing import Any

import torch
import warp as wp


@wp.kernel
def _distances(
    mesh: wp.uint64, points: wp.array(dtype=wp.vec3), distances: wp.array(dtype=float), closest: wp.array(dtype=wp.vec3)
):
    row = wp.tid()
    query = wp.mesh_query_point_sign_normal(mesh, points[row], 10.0)
    if query.result:
        place = wp.mesh_eval_position(mesh, query.face, query.u, query.v)
        closest[row] = place
        distances[row] = query.sign * wp.length(points[row] - place)


class Queries:
    """A mesh, and several sets of points."""

    def __init__(self, scene: Any, points: list[Any], device: torch.device) -> None:
        wp.init()
        self._device = wp.device_from_torch(device)
        vertices = wp.array(scene.vertices.astype("float32"), dtype=wp.vec3, device=self._device)
        indices = wp.array(scene.faces.reshape(-1), dtype=int, device=self._device)
        self._mesh = wp.Mesh(vertices, indices)
        tensors = [torch.from_numpy(each).float().to(device) for each in points]
        self._points = [wp.from_torch(each, dtype=wp.vec3) for each in tensors]

    def distances(self, kind: int) -> torch.Tensor:
        """The distances of one set of points, on torch's stream."""
        points = self._points[kind]
        found = torch.empty(len(points), device=wp.device_to_torch(self._device))
        closest = torch.empty(len(points), 3, device=found.device)
        stream = wp.stream_from_torch(torch.cuda.current_stream()) if found.is_cuda else None
        arguments = [self._mesh.id, points, wp.from_torch(found), wp.from_torch(closest, dtype=wp.vec3)]
        wp.launch(_distances, dim=len(points), inputs=arguments, device=self._device, stream=stream)
        return found
