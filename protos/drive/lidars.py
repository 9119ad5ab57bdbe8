"""Lidars that driving simulators name, as tables of the angles that their manufacturer's manuals state.

The manuals count horizontal angles clockwise; here azimuths rise from x, which is forward, towards y.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from lumigrad.protos.drive.motion import Float64

# Vertical and horizontal angles of the channels of a Pandar128, degrees.
_PANDAR128_ELEVATIONS = """
14.436 13.535 13.082 12.624 12.165 11.702 11.239 10.771 10.305 9.830 9.356 8.880 8.401 7.921 7.438 6.953
6.467 5.978 5.487 4.996 4.501 4.007 3.509 3.013 2.512 2.013 1.885 1.761 1.637 1.511 1.386 1.258
1.130 1.008 0.880 0.756 0.630 0.505 0.379 0.251 0.124 0.000 -0.129 -0.254 -0.380 -0.506 -0.632 -0.760
-0.887 -1.012 -1.141 -1.266 -1.393 -1.519 -1.646 -1.773 -1.901 -2.027 -2.155 -2.282 -2.409 -2.535 -2.663 -2.789
-2.916 -3.044 -3.172 -3.299 -3.425 -3.552 -3.680 -3.806 -3.933 -4.062 -4.190 -4.318 -4.444 -4.571 -4.699 -4.824
-4.951 -5.081 -5.209 -5.336 -5.463 -5.589 -5.718 -5.843 -5.968 -6.100 -6.607 -7.117 -7.624 -8.134 -8.640 -9.149
-9.652 -10.160 -10.665 -11.170 -11.672 -12.174 -12.673 -13.173 -13.670 -14.166 -14.660 -15.154 -15.645 -16.135
-16.622 -17.106 -17.592 -18.072 -18.548 -19.030 -19.501 -19.978 -20.445 -20.918 -21.379 -21.848 -22.304 -22.768
-23.219 -23.678 -24.123 -25.016
"""
_PANDAR128_OFFSETS = """
3.257 3.263 1.091 3.268 1.093 3.273 1.094 3.278 1.095 3.283 1.096 3.288 1.097 3.291 1.098 -1.101
1.100 -1.104 -3.306 -1.106 -3.311 -1.109 -3.318 -1.111 -3.324 -1.113 7.720 5.535 3.325 -3.330 1.107 -5.538
-7.726 -1.115 7.731 5.543 3.329 -3.336 1.108 -5.547 -7.738 -1.117 7.743 5.551 3.335 -3.342 1.110 -5.555
-7.750 -1.119 7.757 5.560 3.340 -3.347 1.111 -5.564 -7.762 -1.121 7.768 5.569 3.345 -3.353 1.113 -5.573
-7.775 -1.123 7.780 5.578 3.351 -3.358 1.115 -5.582 -7.787 -1.125 7.792 5.586 3.356 -3.363 1.116 -5.591
-7.799 -1.127 7.804 5.595 3.360 -3.369 1.118 -5.599 -7.811 -1.129 -3.374 -1.130 -3.379 -1.132 -3.383 3.381
-3.388 3.386 1.127 3.390 1.129 3.395 1.131 3.401 1.133 3.406 1.135 3.410 1.137 3.416 1.139 -1.142
1.142 -1.143 -3.426 -1.144 -3.429 -1.145 -3.433 -1.145 -3.436 -1.146 -3.440 -1.146 -3.443 -1.147 -3.446 -3.449
"""


@dataclass(frozen=True, eq=False)
class LidarTable:
    """The angles of a lidar that scans clockwise, radians.

    Attributes:
        elevations: [H] from the highest to the lowest.
        offsets: [H] added to the azimuths of the columns.
        azimuths: [W] azimuths of the columns, in the order of time.
    """

    elevations: Float64
    offsets: Float64
    azimuths: Float64


def _pandar128() -> LidarTable:
    """Return one turn in steps of 0.2 degrees, which begins at the back."""
    elevations, offsets = (np.array(text.split(), float) for text in (_PANDAR128_ELEVATIONS, _PANDAR128_OFFSETS))
    return LidarTable(*map(np.radians, (elevations, -offsets, 180.0 - 0.2 * np.arange(1800))))


def _at128() -> LidarTable:
    """Return 120 degrees in steps of 0.1 degrees, from left to right; rows are 0.2 degrees apart."""
    rows = np.arange(128)
    # Rows alternate between two lasers, and their sides between banks of 16 rows.
    sides = np.where(rows // 16 % 2 == 0, 1.0, -1.0)
    offsets = np.where(rows % 2 == 0, 2.4, -0.65) * sides
    return LidarTable(*map(np.radians, (12.93 - 0.2 * rows, -offsets, 59.95 - 0.1 * np.arange(1200))))


# Tables by the names of LidarDeviceType.
LIDARS: Mapping[str, LidarTable] = {"PANDAR128": _pandar128(), "AT128": _at128()}
