"""gsplat's `PngCompression` (`gsplat.compression`), which is not offered."""

from __future__ import annotations

from typing import Any


class PngCompression:
    """Raises NotImplementedError when it is made: .sog and .spz files take its place."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(
            "PngCompression is not offered; write a file of rounded values by export_splats(save_to='scene.ply') and "
            "`lumigrad convert scene.ply scene.sog`, and leave --compression out"
        )
