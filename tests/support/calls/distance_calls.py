"""Calls for meshes and worlds with protobuf messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lumigrad.protos.service import DISTANCE_SERVICE, Stub
from lumigrad.protos.streams import frames_of
from lumigrad.protos.tensors import PayloadWriter
from lumigrad.v1 import distance_pb2, scene_pb2, world_pb2
from support.calls.raw_calls import SECONDS, Array, Arrays, RawClient, Reply, collected, reply_of
from support.meshes.case import MeshShape

Floats = npt.NDArray[np.float32]


def mesh_arrays(shape: MeshShape) -> dict[str, Array]:
    """The tensors of a mesh."""
    return {"vertices": shape.vertices.astype(np.float32), "faces": shape.faces.astype(np.int32)}


def pose_of(*values: float) -> world_pb2.Pose:
    """A pose of x y z and, with a rotation, w x y z."""
    return world_pb2.Pose(values=values if len(values) == 7 else (*values, 1.0, 0.0, 0.0, 0.0))


def mesh_obstacle(mesh_id: str, **fields: Any) -> world_pb2.Obstacle:
    """An obstacle with a stored mesh."""
    return world_pb2.Obstacle(mesh_id=mesh_id, **fields)


def cuboid(*size: float, **fields: Any) -> world_pb2.Obstacle:
    """A box with these edges."""
    return world_pb2.Obstacle(cuboid=world_pb2.Cuboid(size=size), **fields)


def grid(values: Floats, voxel_size: float, payload: PayloadWriter, **fields: Any) -> world_pb2.Obstacle:
    """A grid whose values are appended to `payload`."""
    shape = world_pb2.VoxelGrid(distances=payload.add(values), voxel_size=voxel_size)
    return world_pb2.Obstacle(grid=shape, **fields)


def world_of(*obstacles: world_pb2.Obstacle, environments: int = 0) -> scene_pb2.Scene:
    """A world as a scene."""
    return scene_pb2.Scene(world=world_pb2.World(obstacles=obstacles, environments=environments))


def points(*centres: Sequence[float], radius: float = 0.0) -> Floats:
    """Spheres [1, 1, S, 4]."""
    return np.array([[[(*centre, radius) for centre in centres]]], np.float32)


class DistanceClient:
    """Calls of DistanceService, and of SceneService for worlds."""

    def __init__(self, client: RawClient) -> None:
        self.raw = client
        self.stub = Stub(client.channel, DISTANCE_SERVICE)

    def put(self, scene: scene_pb2.Scene, payload: PayloadWriter | None = None, **fields: Any) -> scene_pb2.PutReply:
        """Store a world."""
        request = scene_pb2.PutRequest(scene=scene, **fields)
        return self.raw.scene_stub.Put(frames_of(request, payload or PayloadWriter()), timeout=SECONDS)

    def update(self, scene_id: str, expected_version: int, *obstacles: world_pb2.ObstacleUpdate) -> Any:
        """Change obstacles of a world."""
        request = scene_pb2.UpdateRequest(scene_id=scene_id, expected_version=expected_version, obstacles=obstacles)
        return self.raw.scene_stub.Update(frames_of(request, PayloadWriter()), timeout=SECONDS)

    def get_world(self, scene_id: str) -> tuple[scene_pb2.GetReply, Arrays]:
        """Get a world, and the values of its grids by name."""
        request = scene_pb2.GetRequest(scene_id=scene_id, with_tensors=True)
        header, reader, _, _ = collected(self.raw.scene_stub.Get(request, timeout=SECONDS))
        grids = {
            entry.name: reader.read(entry.grid.distances, entry.name)
            for entry in header.scene.world.obstacles
            if entry.HasField("grid")
        }
        return header, grids

    def query(
        self,
        source: str | scene_pb2.Scene,
        spheres: Floats,
        *,
        retain: bool = False,
        payload: PayloadWriter | None = None,
        timeout: float = SECONDS,
        **fields: Any,
    ) -> Reply:
        """Query a stored scene, or one that is sent with the call with its tensors in `payload`."""
        payload = payload or PayloadWriter()
        spec = self.spec(source, spheres, payload, **fields)
        request = distance_pb2.QueryRequest(spec=spec, retain=retain)
        return reply_of(self.stub.Query(frames_of(request, payload), timeout=timeout), lambda header: header.outputs)

    def backward(
        self,
        gradients: Arrays,
        *,
        context_id: str = "",
        spec: distance_pb2.DistanceSpec | None = None,
        payload: PayloadWriter | None = None,
        **fields: Any,
    ) -> Reply:
        """Differentiate a context, or a spec whose tensors are in `payload`."""
        payload = payload or PayloadWriter()
        request = distance_pb2.DistanceBackwardSpec(
            context_id=context_id if spec is None else None, query=spec, **fields
        )
        for name, array in gradients.items():
            request.output_gradients.add(name=name, tensor=payload.add(array))
        header = distance_pb2.DistanceBackwardRequest(spec=request)
        return reply_of(
            self.stub.Backward(frames_of(header, payload), timeout=SECONDS), lambda header: header.gradients
        )

    def field(self, **fields: Any) -> Reply:
        """Query the voxels of a box."""
        frames = self.stub.Field(distance_pb2.FieldRequest(**fields), timeout=SECONDS)
        return reply_of(frames, lambda header: header.outputs)

    @staticmethod
    def spec(
        source: str | scene_pb2.Scene,
        spheres: Floats,
        payload: PayloadWriter,
        *,
        outputs: Sequence[str] = (),
        environments: Array | None = None,
        poses: Floats | None = None,
        per_obstacle: bool = False,
        **settings: Any,
    ) -> distance_pb2.DistanceSpec:
        """The specification of a query."""
        stored = isinstance(source, str)
        return distance_pb2.DistanceSpec(
            scene_ref=scene_pb2.SceneRef(scene_id=source) if stored else None,
            scene=None if stored else source,
            spheres=payload.add(spheres),
            environments=None if environments is None else payload.add(environments),
            poses=None if poses is None else payload.add(poses),
            settings=distance_pb2.DistanceSettings(**settings),
            outputs=outputs,
            per_obstacle=per_obstacle,
        )
