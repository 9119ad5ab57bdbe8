"""Lidar scans for driving simulators: the angles of their returns, and the points of a reply."""

from __future__ import annotations

from functools import cache

import numpy as np

from lumigrad.drive.v1 import sensorsim_pb2
from lumigrad.protos.drive.lidars import LIDARS
from lumigrad.protos.dtypes import Array
from lumigrad.server.core.limits import require
from lumigrad.server.sensorsim.lenses import Optics, Size
from lumigrad.v1 import camera_pb2

# The outputs that a scan renders, and the bytes of a return: the outputs, its point and its intensity.
OUTPUTS = ("alpha", "expected_hit_distance")
RETURN_BYTES = 4 * (len(OUTPUTS) + 4)
# A beam returns if it is more likely stopped than not.
_LEAST_ALPHA = 0.5


def lidar_of(request: sensorsim_pb2.LidarRenderRequest, field: str) -> str:
    """Return the name of a request's lidar; the request's path `field` is empty or ends in "."."""
    number = request.lidar_config.lidar_type
    kind = sensorsim_pb2.LidarDeviceType.DESCRIPTOR.values_by_number.get(number)
    require(kind is not None, f"{field}lidar_config.lidar_type", " or ".join(LIDARS), number)
    assert kind is not None
    return str(kind.name)


@cache
def optics_of_lidar(name: str) -> Optics:
    """Return the optics of a lidar, whose columns are scanned one after the other."""
    table = LIDARS[name]
    lidar = camera_pb2.SpinningLidar(
        row_elevations=table.elevations,
        column_azimuths=table.azimuths,
        row_azimuth_offsets=table.offsets,
        direction=camera_pb2.SPIN_DIRECTION_CLOCKWISE,
    )
    return Optics(camera_pb2.SensorCamera(shutter=camera_pb2.SHUTTER_LEFT_TO_RIGHT, lidar=lidar), True)


def size_of_lidar(name: str) -> Size:
    """Return a lidar's columns and rows."""
    table = LIDARS[name]
    return Size(len(table.azimuths), len(table.elevations), 1.0)


@cache
def _directions(name: str) -> Array:
    """Return the directions of the returns in the lidar's frame, float32 [H, W, 3]."""
    table = LIDARS[name]
    azimuths = table.azimuths[None] + table.offsets[:, None]
    elevations = np.broadcast_to(table.elevations[:, None], azimuths.shape)
    level = np.cos(elevations)
    parts = (np.cos(azimuths) * level, np.sin(azimuths) * level, np.sin(elevations))
    return np.stack(parts, -1).astype(np.float32)


def points_of(name: str, alpha: Array, distances: Array) -> bytes:
    """Return the points of a scan, float32 x y z in metres, in the lidar's frame when each was measured."""
    hit = alpha > _LEAST_ALPHA
    return (_directions(name)[hit] * distances[hit, None]).tobytes()


def reply_of(points: bytes) -> sensorsim_pb2.LidarRenderReturn:
    """Return the reply with these points; intensities are 0, because Gaussians have none."""
    count = len(points) // 12
    return sensorsim_pb2.LidarRenderReturn(
        num_points=count, point_xyzs_buffer=points, point_intensities_buffer=bytes(4 * count)
    )
