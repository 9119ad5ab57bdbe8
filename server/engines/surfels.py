"""Surfels, flat Gaussians: what requests for them must not contain, and the memory that they take beyond volumes."""

from __future__ import annotations

from collections.abc import Sequence

from lumigrad.kernels.gaussians import Camera, Settings
from lumigrad.server.core.limits import require
from lumigrad.server.engines.content import Shapes
from lumigrad.v1 import gaussians_pb2, render_pb2

# Outputs that surfels do not have.
WITHOUT = ("inverse_depth", "conics", "projected_opacities")

# Bytes per Gaussian of a view and of its backward pass, in addition to those of volumes. Measured: 80 to 120, and 0 to
# 65.
SURFEL_VIEW_BYTES = 100
SURFEL_BACKWARD_BYTES = 50
# Bytes per pixel of all views, for normals of surfaces, outputs not included. Measured: 60 and 119.
NORMAL_BYTES = 60
NORMAL_BACKWARD_BYTES = 120


def check_surfels(
    spec: render_pb2.RenderSpec, cameras: Sequence[Camera], settings: Settings, shapes: Shapes, field: str
) -> None:
    """Check that cameras, settings and the scene fit surfels; `field` is the spec's path."""
    where = f"{field}.gaussians"
    by_sigma_points = spec.gaussians.projection_method == gaussians_pb2.PROJECTION_METHOD_UNSCENTED
    limit = "none, or PROJECTION_METHOD_JACOBIAN, with PRIMITIVE_SURFEL"
    require(not by_sigma_points, f"{where}.projection_method", limit, "PROJECTION_METHOD_UNSCENTED")
    for index, camera in enumerate(cameras):
        model = str(spec.cameras[index].WhichOneof("model"))
        path = f"{field}.cameras[{index}].{model}"
        require(
            model == "opencv",
            path,
            "an opencv camera, a pinhole without distortion or shutter, with PRIMITIVE_SURFEL",
            model,
        )
        require(camera.model == "pinhole", f"{path}.projection", "a pinhole with PRIMITIVE_SURFEL", camera.model)
        found = "some" if camera.distorted else "none"
        require(not camera.distorted, f"{path}.distortion", "none with PRIMITIVE_SURFEL", found)
    require(not settings.inria, f"{where}.semantics", "exact or gsplat with PRIMITIVE_SURFEL", settings.semantics)
    require(not settings.antialiased, f"{where}.antialiased", "false with PRIMITIVE_SURFEL", settings.antialiased)
    eps2d = spec.gaussians.eps2d if spec.gaussians.HasField("eps2d") else None
    require(eps2d is None, f"{where}.eps2d", "none with PRIMITIVE_SURFEL, which is not blurred", eps2d)
    center = settings.pixel_center
    require(center == 0.5, f"{where}.pixel_center", "0.5 with PRIMITIVE_SURFEL", center)
    for name, value in settings.sensor_settings.items():
        require(name == "tile_size", f"{where}.{name}", "the default with PRIMITIVE_SURFEL", value)
    limit = "a scene with quats and scales for PRIMITIVE_SURFEL"
    require("covariances" not in shapes, f"{where}.primitive", limit, "covariances")
