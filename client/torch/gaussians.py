"""`render_gaussians`: Gaussians as a differentiable torch operator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.operators.call import check_stored, chosen
from lumigrad.client.operators.gaussians import (
    LEAST_ALPHA,
    OUTPUTS,
    GaussianCall,
    ViewMatrices,
    distortion_rows,
    moving_slices,
    projection_of,
    travelling,
)
from lumigrad.client.operators.sensor_arguments import are_sensors, check_outputs, sensor_settings
from lumigrad.client.operators.sensors import SensorMatrices
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.rendering.request import WireFormat
from lumigrad.client.settings.gaussians import GaussianSemantics, GaussianSettings, TileBounds
from lumigrad.client.torch.gaussian_inputs import Prepared, check_cameras, prepared
from lumigrad.client.torch.gaussian_nodes import Layout, Rendering, draw, project
from lumigrad.client.torch.remote import outside_graphs, run
from lumigrad.client.torch.sensors import intrinsics_of, sensors
from lumigrad.client.values.camera_models import RowTime
from lumigrad.client.values.handle import SceneHandle
from lumigrad.client.values.lenses import LensDomain

# Outputs on request. Of these inverse_depth, means2d and those along rays have gradients.
ON_RAYS = ("hit_distance", "expected_hit_distance", "normals")
MORE_OUTPUTS = (
    *("inverse_depth", "contributors", "ids", "means2d", "radii", "depths", "conics", "projected_opacities"),
    *ON_RAYS,
)
_WITHOUT_GRADIENT = ("contributors", "ids", "radii", "depths", "conics", "projected_opacities")


class RenderedGaussians(NamedTuple):
    """Images, on the device of the means, or else of viewmats; outputs that were not requested are None.

    Batched inputs add leading sizes before C.

    Attributes:
        color: [C, H, W, D].
        alpha: [C, H, W] 1 - transmittance.
        depth: [C, H, W] sum of camera-space Z times blending weight, scene units.
        expected_depth: [C, H, W] depth / alpha; 0 where alpha is 0.
        transmittance: [C, H, W] weight of the background.
        inverse_depth: [C, H, W] sum of 1 / Z times blending weight.
        contributors: int32 [C, H, W] number of Gaussians blended.
        means2d: [C, N, 2] projected centres, pixels; 0 where culled. Part of the graph: `retain_grad` works, and so
            does a loss on it.
        radii: int32 [C, N, 2] half extents, pixels; 0 where culled.
        depths: [C, N] camera-space Z.
        conics: [C, N, 3] inverse covariances (xx, xy, yy) in the image.
        projected_opacities: [C, N] opacities after antialiasing.
        hit_distance: [C, H, W] with `with_eval3d`, as the next two: sum of distances from the ray's origin to the
            largest response times blending weight, scene units.
        expected_hit_distance: [C, H, W] hit_distance / alpha; 0 where alpha is 0.
        normals: [C, H, W, 3] sum of the third axes, turned against the ray, times blending weight; world frame.
        ids: int32 [C, H, W] index of the Gaussian with the largest blending weight; -1 where none was blended.
    """

    color: torch.Tensor
    alpha: torch.Tensor | None = None
    depth: torch.Tensor | None = None
    expected_depth: torch.Tensor | None = None
    transmittance: torch.Tensor | None = None
    inverse_depth: torch.Tensor | None = None
    contributors: torch.Tensor | None = None
    means2d: torch.Tensor | None = None
    radii: torch.Tensor | None = None
    depths: torch.Tensor | None = None
    conics: torch.Tensor | None = None
    projected_opacities: torch.Tensor | None = None
    hit_distance: torch.Tensor | None = None
    expected_hit_distance: torch.Tensor | None = None
    normals: torch.Tensor | None = None
    ids: torch.Tensor | None = None


@outside_graphs
def render_gaussians(
    means: torch.Tensor | None = None,
    quats: torch.Tensor | None = None,
    scales: torch.Tensor | None = None,
    opacities: torch.Tensor | None = None,
    colors: torch.Tensor | None = None,
    viewmats: torch.Tensor | None = None,
    Ks: torch.Tensor | None = None,
    *,
    width: int,
    height: int,
    scene: SceneHandle | None = None,
    sh_degree: int | None = None,
    backgrounds: torch.Tensor | None = None,
    background: torch.Tensor | Sequence[float] | None = None,
    covars: torch.Tensor | None = None,
    transforms: Sequence[tuple[int, int, torch.Tensor] | tuple[int, int, torch.Tensor, torch.Tensor | None]] = (),
    camera_model: Literal["pinhole", "orthographic", "ortho", "fisheye", "ftheta", "lidar"] = "pinhole",
    distortion: Any = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    global_z_order: bool | None = None,
    tile_size: int | None = None,
    rays: Any = None,
    radial_coeffs: Any = None,
    tangential_coeffs: Any = None,
    thin_prism_coeffs: Any = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: Any = None,
    row_time: RowTime = "continuous",
    lens_domain: LensDomain = "monotone",
    tile_bounds: TileBounds = "conservative",
    ut_params: Any = None,
    semantics: GaussianSemantics = "exact",
    antialiased: bool = False,
    eps2d: float | None = None,
    near: float | None = None,
    far: float | None = None,
    radius_clip: float | None = None,
    alpha_min: float | None = None,
    alpha_max: float | None = None,
    transmittance_min: float | None = None,
    pixel_center: float | None = None,
    scale_modifier: float | None = None,
    deterministic: bool = False,
    gradient_format: WireFormat = "float32",
    sparse_gradients: bool = False,
    outputs: Sequence[str] = OUTPUTS,
    spread: bool = False,
    client: Client | str | None = None,
) -> RenderedGaussians:
    """Renders Gaussians on a worker, differentiably.

    Gradients flow to every tensor that is passed, cameras, background and transforms included. Tensors of any float
    type and device are accepted; they are transferred as float32, matrices as float64. Leading sizes on means, quats,
    scales, opacities, colors, viewmats and Ks describe a batch of scenes, each with its own cameras.

    With a stored `scene` only the tensors that are passed travel: none of the Gaussians' for the gradient of a camera.

    Args:
        means: [N, 3] centres, world frame, scene units. It, quats, scales, opacities and colors are needed, except for
            those that a stored scene has; viewmats and Ks always.
        quats: [N, 4] rotations (w, x, y, z), normalised here; not used with covars.
        scales: [N, 3] standard deviations, scene units, >= 0; not used with covars.
        opacities: [N] in [0, 1].
        colors: [N, D] channels or [C, N, D] for each camera; with sh_degree [N, K, D] coefficients.
        viewmats: [C, 4, 4] world to camera, for column vectors; x right, y down, z forward.
        Ks: [C, 3, 3] intrinsics, pixels; the centre of the first pixel is at 0.5.
        width: picture width, pixels.
        height: picture height, pixels.
        scene: the handle of stored Gaussians, from `Client.put`; tensors that are passed stand in for its own in this
            call. The stored scene does not change.
        sh_degree: degree of the spherical harmonics in use, 0 to 4; None: colors are colours, and the harmonics of a
            stored scene are all in use.
        backgrounds: [C, D] or [D] for all cameras; None: 0.
        background: the same, by the name that `Client.render` has; not with `backgrounds`.
        covars: [N, 3, 3] covariances, instead of quats and scales.
        transforms: (begin, end, matrix [4, 4]): place slices of the Gaussians rigidly in the world; with a fourth entry
            matrix_end [4, 4] they move there until the end of the exposure, with a rolling shutter.
        camera_model: of all cameras; "ortho" is "orthographic", with Ks in pixels per scene unit; "lidar" needs
            with_ut.
        distortion: [k] or [C, k] coefficients k1 k2 p1 p2 [k3 [k4 k5 k6]] of a pinhole; no gradient flows to them.
        with_ut: project by sigma points, which rolling shutters and lidars need; False: by the Jacobian of the lens.
            With it, and with any of the arguments up to `tile_bounds`, rotations in viewmats must be orthonormal, and
            there are no covars.
        with_eval3d: evaluate Gaussians along the rays of pixels; False: in the image.
        global_z_order: sort by, and measure depth along, z; False: as distance from the camera. None: True, but False
            with lidars.
        tile_size: of gsplat's tiles, with tile_bounds="gsplat": 4, 8 or 16 pixels; None: as in gsplat.
        rays: [C, H, W, 6] with with_eval3d: for each pixel the origin and the direction, of any length but 0, world
            frame, in place of those of the lens and pose, which still decide what is visible.
        radial_coeffs: [C, 1 to 6] k1 to k6 of a pinhole, or [C, 4] k1 to k4 of a fisheye.
        tangential_coeffs: [C, 2] p1 p2 of a pinhole.
        thin_prism_coeffs: [C, 4] s1 to s4 of a pinhole.
        ftheta_coeffs: FThetaCameraDistortionParameters of all cameras; Ks then give cx and cy, which count the centre
            of the first pixel as 0.
        lidar_coeffs: RowOffsetStructuredSpinningLidarModelParameters of all cameras, with with_eval3d; x forward, y
            left, z up. The picture then has a row for each elevation and a column for each azimuth; width, height and
            Ks have no effect. With viewmats_rs the lidar moves while it spins.
        external_distortion_coeffs: BivariateWindshieldModelParameters of all cameras.
        rolling_shutter: RollingShutterType; None: GLOBAL.
        viewmats_rs: [C, 4, 4] the poses at the end of the exposure, with a rolling shutter; viewmats are those at its
            start.
        row_time: when a point is exposed: "continuous", a smooth function of its pixel; "staircase", with its whole
            row or column, as in gsplat.
        lens_domain: "monotone": lenses are valid up to where they stop rising; "gsplat": gsplat's limits.
        tile_bounds: "conservative", or "gsplat", which cuts Gaussians at its tiles.
        ut_params: UnscentedTransformParameters; None: the defaults.
        semantics: "exact" for true derivatives; for the others see `GaussianSettings`.
        antialiased: scale opacities to compensate for the area that the blur adds to each Gaussian.
        eps2d: blur in the picture, pixels squared; None: 0.3.
        near: least depth shown, scene units; None: 0.01.
        far: largest depth shown; None: 1e10.
        radius_clip: Gaussians with radii of at most this many pixels are not shown; None: 0.
        alpha_min: contributions with a smaller alpha are skipped; None: 1/255.
        alpha_max: larger alphas are clamped to it; None: 0.99.
        transmittance_min: blending of a pixel stops when its transmittance falls to this; None: 1e-4.
        pixel_center: where the centre of the first pixel is, 0.5 or 0 pixels; None: 0.5.
        scale_modifier: factor on all scales; None: 1.
        deterministic: sum gradients in a fixed order on every device.
        gradient_format: wire format of gradients per Gaussian; "float16" and "bfloat16" halve the bytes.
        sparse_gradients: transfer only non-zero rows; worthwhile if a small part of the scene is visible.
        outputs: outputs beside the colour, from `OUTPUTS` and `MORE_OUTPUTS`; leave out those that you do not use.
        spread: divide the cameras of one scene among several workers; the gradients are summed.
        client: the client to use; a target such as "localhost:50051" means the shared client of that target, None the
            shared client of the default target.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; the backward pass raises the same.

    Example:
        viewmats = torch.from_numpy(camera.view_matrix)[None].requires_grad_()
        Ks = torch.from_numpy(camera.K)[None]
        size = {"width": camera.width, "height": camera.height}
        rendered = render_gaussians(scene=scene, viewmats=viewmats, Ks=Ks, **size, client=client)
        rendered.color.mean().backward()
        viewmats.grad  # [1, 4, 4]
    """
    arguments = locals()
    wanted = chosen(outputs, (*OUTPUTS, *MORE_OUTPUTS), always=("color",))
    check_outputs(arguments, wanted)
    check_stored(scene, "gaussians")
    one_of("gradient_format", gradient_format, get_args(WireFormat))
    tensors = prepared(
        means=means, quats=quats, scales=scales, opacities=opacities, colors=colors, viewmats=viewmats,
        Ks=intrinsics_of(arguments), sh_degree=sh_degree, backgrounds=backgrounds, background=background, covars=covars,
        transforms=transforms, scene=scene,
    )  # fmt: skip
    check_cameras(tensors.inputs)
    tensors, cameras, of_sensors = _cameras(arguments, tensors)
    call = GaussianCall(
        client=client_of(client),
        settings=GaussianSettings.of(arguments, transforms=(), background=(), **of_sensors),
        cameras=cameras,
        batch=tensors.batch,
        slices=tuple((entry[0], entry[1]) for entry in transforms),
        moving=moving_slices(transforms),
        outputs=travelling(wanted),
        gradient_format=gradient_format,
        sparse=sparse_gradients,
        spread=spread,
        scene=scene,
    )
    return _results(call, run(call, tensors.inputs), tensors, wanted)


def _cameras(
    given: Mapping[str, Any], tensors: Prepared
) -> tuple[Prepared, ViewMatrices | SensorMatrices, dict[str, Any]]:
    """The inputs with those of lenses, the cameras, and the settings that sensors have."""
    if not are_sensors(given):
        rows = distortion_rows(given["distortion"], math.prod(tensors.views))
        projection = projection_of(given["camera_model"])
        return tensors, ViewMatrices(given["width"], given["height"], projection, rows), {"tile_bounds": None}
    cameras, inputs = sensors(given, tensors, given["row_time"], given["lens_domain"])
    tensors = replace(tensors, inputs={**tensors.inputs, **inputs})
    return tensors, cameras, sensor_settings(given, given["tile_bounds"])


def with_derived(images: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The images, with alpha, expected depth and expected hit distance computed from them."""
    if "transmittance" in images:
        images = {**images, "alpha": 1.0 - images["transmittance"]}
        if "depth" in images:
            images["expected_depth"] = images["depth"] / images["alpha"].clamp_min(LEAST_ALPHA)
        if "hit_distance" in images:
            images["expected_hit_distance"] = images["hit_distance"] / images["alpha"].clamp_min(LEAST_ALPHA)
    return images


def _results(call: GaussianCall, frame: Frame, tensors: Prepared, wanted: Sequence[str]) -> RenderedGaussians:
    layout = Layout((*tensors.views, tensors.count), None, tensors.device)
    rendering = Rendering(call, frame, layout)
    centres = echo = None
    if "means2d" in wanted:
        centres = layout.arrange(frame.means2d)
        # Along rays they have no gradient.
        if call.settings.response != "ray":
            centres, echo = project(rendering, centres, tensors.inputs)
    images = with_derived(draw(rendering, None if echo is None else centres, echo, tensors.inputs))
    images |= {name: torch.from_numpy(frame[name]) for name in _WITHOUT_GRADIENT if name in wanted}
    results = {name: tensors.placed(image) for name, image in images.items() if name in wanted}
    if centres is not None:
        results["means2d"] = centres
    return RenderedGaussians(**results)
