"""`render_gaussians`: Gaussians as a differentiable torch operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import torch

from lumigrad.client.base.arguments import one_of
from lumigrad.client.base.arrays import summary
from lumigrad.client.client import Client
from lumigrad.client.default import client_of
from lumigrad.client.operators.call import check_stored, chosen, is_number
from lumigrad.client.operators.cameras import sensor_inputs, views_of
from lumigrad.client.operators.gaussians import (
    OUTPUTS,
    GaussianCall,
    check_ray_outputs,
    moving_slices,
    travelling,
    with_derived,
)
from lumigrad.client.rendering.request import WireFormat
from lumigrad.client.settings.fields import GaussianFields
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.torch.gaussian_inputs import TENSORS, Prepared, check_cameras, of_cameras, prepared
from lumigrad.client.torch.gaussian_nodes import Layout, Rendering, draw, project
from lumigrad.client.torch.remote import outside_graphs, refuse_gradients, run
from lumigrad.client.values.camera import Camera
from lumigrad.client.values.camera_models import Projection
from lumigrad.client.values.handle import SceneHandle

if TYPE_CHECKING:
    from typing_extensions import Unpack

# Outputs on request, of which inverse_depth, means2d and those along rays have gradients.
ON_RAYS = ("hit_distance", "expected_hit_distance", "normals")
MORE_OUTPUTS = (
    *("inverse_depth", "contributors", "ids", "means2d", "radii", "depths", "conics", "projected_opacities"),
    *ON_RAYS,
)
_WITHOUT_GRADIENT = ("contributors", "ids", "radii", "depths", "conics", "projected_opacities")


class RenderedGaussians(NamedTuple):
    """Images, on the device of the means or else of viewmats. Outputs that were not requested are None.

    Batched inputs add leading sizes before C.

    Attributes:
        color: [C, H, W, D].
        alpha: [C, H, W] 1 - transmittance.
        depth: [C, H, W] sum of camera-space Z times blending weight, scene units.
        expected_depth: [C, H, W] depth / alpha; 0 where alpha is 0.
        transmittance: [C, H, W] weight of the background.
        inverse_depth: [C, H, W] sum of 1 / Z times blending weight.
        contributors: int32 [C, H, W] number of Gaussians blended.
        means2d: [C, N, 2] projected centres, pixels; 0 where culled. Part of the graph: `retain_grad` and losses on
            the centres work.
        radii: int32 [C, N, 2] half extents, pixels; 0 where culled.
        depths: [C, N] camera-space Z.
        conics: [C, N, 3] inverse covariances (xx, xy, yy) in the image.
        projected_opacities: [C, N] opacities after antialiasing.
        hit_distance: [C, H, W] sum of distances from the ray's origin to the largest response times blending weight,
            scene units; this and the next two only with response="ray".
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

    def __repr__(self) -> str:
        return summary(type(self).__name__, self._asdict())


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
    camera: Camera | Sequence[Camera] | None = None,
    width: int | None = None,
    height: int | None = None,
    scene: SceneHandle | None = None,
    covariances: torch.Tensor | None = None,
    background: torch.Tensor | Sequence[float] | float | None = None,
    transforms: Sequence[tuple[int, int, torch.Tensor] | tuple[int, int, torch.Tensor, torch.Tensor | None]] = (),
    projection: Projection | None = None,
    distortion: Any = None,
    lens: Mapping[str, torch.Tensor] | None = None,
    viewmats_end: torch.Tensor | None = None,
    rays: torch.Tensor | None = None,
    settings: GaussianSettings | None = None,
    outputs: Sequence[str] = OUTPUTS,
    sparse: bool = False,
    gradient_format: WireFormat = "float32",
    spread: bool = False,
    client: Client | str | None = None,
    **fields: Unpack[GaussianFields],
) -> RenderedGaussians:
    """Renders Gaussians on a worker, differentiably.

    Gradients flow to every passed tensor, including cameras, background and transforms. Tensors of any float type and
    device are accepted; they are transferred as float32, matrices as float64. Leading sizes on means, quats, scales,
    opacities, colors, viewmats and Ks describe a batch of scenes, each with its own cameras.

    With a stored `scene`, only the tensors that you pass are sent: for the gradient of a camera, none of the Gaussians.

    Cameras are given by `camera`, or by viewmats and Ks. Tensors that are passed in addition to `camera` replace its
    own numbers, and have gradients.

    Args:
        means: [N, 3] centres, world frame, scene units. Without a stored scene, means, quats, scales, opacities and
            colors are needed; with one, each may be None.
        quats: [N, 4] rotations (w, x, y, z), normalised here; not used with covariances.
        scales: [N, 3] standard deviations, scene units, >= 0; not used with covariances.
        opacities: [N] in [0, 1].
        colors: [N, D] channels or [C, N, D] per camera; with the setting sh_degree, [N, K, D] coefficients.
        viewmats: [C, 4, 4] world to camera, for column vectors; x right, y down, z forward. Needed without `camera`;
            rotations of sensors must be orthonormal.
        Ks: [C, 3, 3] intrinsics, pixels; the centre of the first pixel is at 0.5, with an f-theta lens at 0. Needed
            without `camera`.
        camera: one OpenCV camera or sensor, or C of one size, with lenses and shutters of one kind. Results have a
            camera axis in any case.
        width: image width, pixels; not needed with `camera`.
        height: image height, pixels; not needed with `camera`.
        scene: the handle of stored Gaussians, from `Client.put`. Passed tensors replace its own in this call; the
            stored scene does not change.
        covariances: [N, 3, 3], instead of quats and scales; not with sensors.
        background: [C, D], [D] for all cameras, or one number; None: as in the settings, by default 0.
        transforms: tuples (begin, end, matrix [4, 4]), which place slices of the Gaussians rigidly in the world; with a
            fourth entry matrix_end [4, 4], slices move there until the end of a rolling shutter's exposure.
        projection: without `camera`: "pinhole" (None), "fisheye", or "orthographic" with Ks in pixels per scene unit.
        distortion: without `camera`: [k] or [C, k] coefficients k1 k2 p1 p2 [k3 [k4 k5 k6]] of a pinhole; no gradient
            flows to them, so they must not require one.
        lens: coefficients [k] or [C, k] of the camera's lens or windshield, or a lidar's tables, by name, as many as
            the camera has: "radial", "tangential", "thin_prism", "angle_to_pixel_distance", "pixel_distance_to_angle",
            "linear", "horizontal", "vertical", "horizontal_inverse", "vertical_inverse", "elevations", "azimuths",
            "offsets".
        viewmats_end: [C, 4, 4] poses at the end of a rolling shutter's exposure; viewmats are those at its start.
        rays: [C, H, W, 6] with response="ray": origin and direction, of any nonzero length, for each pixel, world
            frame. They replace the rays of lens and pose, which still determine what is visible.
        settings: settings of the rendering; None: the defaults. Arguments replace its background and transforms.
        outputs: outputs besides the colour, from `OUTPUTS` and `MORE_OUTPUTS`; omit unused ones.
        sparse: transfer only nonzero rows of gradients; worthwhile if a small part of the scene is visible.
        gradient_format: wire format of gradients per Gaussian; "float16" and "bfloat16" halve the bytes.
        spread: divide the cameras of one scene among several workers; the gradients are summed.
        client: the client to use; a target such as "localhost:50051" means the shared client of that target, None the
            shared client of the default target.
        fields: fields of the settings by name, e.g. `sh_degree=3`, as for `Client.render`.

    Raises:
        InvalidArgument: an argument is wrong; the text names it.
        LumigradError: no worker answered in time, or none has room; the backward pass raises the same.

    Example:
        viewmats = torch.from_numpy(camera.view_matrix)[None].requires_grad_()
        rendered = render_gaussians(scene=scene, camera=camera, viewmats=viewmats, near=0.1, client=client)
        rendered.color.mean().backward()
        viewmats.grad  # [1, 4, 4]
    """
    refuse_gradients(**GaussianSettings.among(fields), distortion=distortion)
    chosen_settings = GaussianSettings.from_fields(settings, fields)
    wanted = chosen(outputs, (*OUTPUTS, *MORE_OUTPUTS), always=("color",))
    transforms = transforms or chosen_settings.transforms
    check_ray_outputs(chosen_settings, wanted)
    check_stored(scene, "gaussians")
    one_of("gradient_format", gradient_format, get_args(WireFormat))
    if is_number(background):
        chosen_settings, background = replace(chosen_settings, background=background), None
    views = views_of(
        camera, width=width, height=height, projection=projection, distortion=distortion, viewmats=viewmats
    )
    own = of_cameras(views, means, scene)
    tensors = prepared(
        means=means, quats=quats, scales=scales, opacities=opacities, colors=colors,
        viewmats=own.get("view") if viewmats is None else viewmats, Ks=own.get("projection") if Ks is None else Ks,
        sh_degree=chosen_settings.sh_degree, background=background, covariances=covariances, transforms=transforms,
        scene=scene,
    )  # fmt: skip
    check_cameras(tensors.inputs)
    matrices, inputs = sensor_inputs(views, tensors.views, TENSORS, lens=lens, viewmats_end=viewmats_end, rays=rays)
    tensors = replace(tensors, inputs={**tensors.inputs, **inputs})
    call = GaussianCall(
        client=client_of(client),
        settings=chosen_settings,
        cameras=matrices,
        batch=tensors.batch,
        slices=tuple((entry[0], entry[1]) for entry in transforms),
        moving=moving_slices(transforms),
        outputs=travelling(wanted),
        gradient_format=gradient_format,
        sparse=sparse,
        spread=spread,
        scene=scene,
    )
    return RenderedGaussians(**rendered(call, tensors, wanted))


def rendered(call: GaussianCall, tensors: Prepared, wanted: Sequence[str]) -> dict[str, torch.Tensor]:
    """Makes a call; returns the wanted results, which are part of the graph."""
    frame = run(call, tensors.inputs)
    layout = Layout((*tensors.views, tensors.count), None, tensors.device)
    rendering = Rendering(call, frame, layout)
    centres = echo = None
    if "means2d" in wanted:
        centres = layout.arrange(frame.means2d)
        # The projected centres have no gradient with response="ray".
        if call.settings.response != "ray":
            centres, echo = project(rendering, centres, tensors.inputs)
    images = with_derived(draw(rendering, None if echo is None else centres, echo, tensors.inputs))
    images |= {name: torch.from_numpy(frame[name]) for name in _WITHOUT_GRADIENT if name in wanted}
    results = {name: tensors.placed(image) for name, image in images.items() if name in wanted}
    if centres is not None:
        results["means2d"] = centres
    return results
