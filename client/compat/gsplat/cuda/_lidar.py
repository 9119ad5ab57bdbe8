"""The names of `gsplat.cuda._lidar` that programs import."""

from lumigrad.client.compat.gsplat.parameters import (
    LidarTiling,
    RowOffsetStructuredSpinningLidarModelParameters,
    SpinningDirection,
)
from lumigrad.client.compat.gsplat.parameters import (
    compute_lidar_angles_to_columns_map as compute_angles_to_columns_map,
)
from lumigrad.client.compat.gsplat.parameters import compute_lidar_tiling as compute_tiling
