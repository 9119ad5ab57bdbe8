"""gsplat's `rasterization`, which renders on a worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from lumigrad.client.base.arguments import whole_number
from lumigrad.client.compat.gsplat.harmonics import colors_per_camera, has_harmonics_per_camera, with_signals
from lumigrad.client.compat.gsplat.meta import Intermediates, Jacobian, SecondCall, Snapshot, meta_of
from lumigrad.client.compat.gsplat.options import (
    GsplatArgumentError,
    check_modes,
    check_rays,
    check_renderer,
    check_sensors,
    gsplat_refusals,
    refuse_ranks,
)
from lumigrad.client.compat.gsplat.projection import Film
from lumigrad.client.compat.gsplat.sensors import check_without, intrinsics_of, projection_of, sensor_settings, sensors
from lumigrad.client.default import default_client
from lumigrad.client.operators.gaussians import IMAGES, GaussianCall, ViewMatrices, with_derived
from lumigrad.client.operators.sensors import SensorMatrices
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.gaussians import GaussianSettings
from lumigrad.client.torch.gaussian_inputs import Prepared, prepared, six_numbers
from lumigrad.client.torch.gaussian_nodes import Rendering, SparseRows, draw, project
from lumigrad.client.torch.remote import outside_graphs, requires_gradient, run

_TILE_SIZE = 16
_RAY_TILE_SIZE, _LARGE_PICTURE = 8, 1080
# Replaces a near plane of 0, with which gsplat divides by zero for Gaussians in the camera's plane.
LEAST_NEAR = 1e-6
# Arguments whose gradients are COO tensors with sparse_grad.
SPARSE = ("means", "quats", "scales")


@outside_graphs
def rasterization(
    means: torch.Tensor,
    quats: torch.Tensor | None,
    scales: torch.Tensor | None,
    opacities: torch.Tensor,
    colors: torch.Tensor | None,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = 0.3,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int | None = None,
    backgrounds: torch.Tensor | None = None,
    render_mode: str = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: str = "classic",
    channel_chunk: int = 32,
    distributed: bool = False,
    camera_model: str = "pinhole",
    segmented: bool = False,
    covars: torch.Tensor | None = None,
    with_ut: bool = False,
    with_eval3d: bool = False,
    return_normals: bool = False,
    global_z_order: bool = True,
    rays: torch.Tensor | None = None,
    radial_coeffs: torch.Tensor | None = None,
    tangential_coeffs: torch.Tensor | None = None,
    thin_prism_coeffs: torch.Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: torch.Tensor | None = None,
    ut_params: Any = None,
    extra_signals: torch.Tensor | None = None,
    extra_signals_sh_degree: int | None = None,
    renderer_config: Any = None,
    *,
    target: str | None = None,
) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Renders Gaussians on a worker like gsplat's function of this name, gradients included.

    The arguments are gsplat's, whose documentation describes them; shapes, units and defaults are the same.
    What follows is particular to this function:

    - `scales`: the absolute values of negative ones are used.
    - `colors`: may be None if only the depth is rendered.
    - `Ks`: [.., C, 3, 3] intrinsics; unlike the original's they get a gradient, if they require one.
    - `tile_size`: None: 16, along rays of small pictures 8. Pictures depend on it only with `with_ut`.
    - `channel_chunk`: accepted, without effect; any number of channels is rendered at once.
    - `distributed`: must be False where torch.distributed has several ranks; one rank holds all Gaussians.
    - `segmented`: accepted, without effect.
    - `covars`: the upper triangle of each is used, and gets the gradient.
    - `with_ut`: project by sigma points, through real lenses and shutters. Like gsplat's, these pictures have no
      gradients through the projection; `lumigrad.client.torch.render_gaussians` has them.
    - `rays`: cameras may share rays: sizes before [H, W, 6] may be 1 or left out.
    - `ftheta_coeffs`: FThetaCameraDistortionParameters. Like the next three, gsplat's own or the one of this package.
    - `lidar_coeffs`: RowOffsetStructuredSpinningLidarModelParameters; the picture has the size of its tables.
    - `external_distortion_coeffs`: BivariateWindshieldModelParameters.
    - `rolling_shutter`: RollingShutterType; None: GLOBAL.
    - `extra_signals`: their background is 0 unless backgrounds have D + E channels.
    - `extra_signals_sh_degree`: values are those of the harmonics plus 0.5; unlike those of colors they may be
      negative.
    - `renderer_config`: must be None, or gsplat's default; with `with_eval3d` either of gsplat's two.
    - `target`: the worker's address; None: LUMIGRAD_TARGET, else localhost:50051.

    Returns:
        Colours [.., C, H, W, X], alphas [.., C, H, W, 1] and a dictionary of intermediate results, on the device of the
        means. X is D, 1 for a depth alone, D + 1 for both.

    Raises:
        NotImplementedError: an option of gsplat is not supported; the text names it, the reason, and what to do.
        GsplatArgumentError: an argument is invalid.
    """
    given = locals()
    given["covars"] = upper_triangles(covars)
    refuse_ranks(distributed)
    check_modes(render_mode, camera_model, rasterize_mode)
    check_renderer(renderer_config, with_eval3d)
    if with_ut or with_eval3d:
        check_sensors(given)
    if not with_eval3d:
        check_rays(given)
    with gsplat_refusals():
        # gsplat has smaller tiles along rays, except in large pictures.
        default = _RAY_TILE_SIZE if with_eval3d and min(width, height) < _LARGE_PICTURE else _TILE_SIZE
        tile_size = whole_number("tile_size", default if tile_size is None else tile_size, 1, 1 << 15)
        rows = SparseRows()
        is_sparse = packed and sparse_grad
        tensors = _prepared({**given, **{name: rows.of(given[name]) for name in SPARSE}} if is_sparse else given)
        tensors, cameras, settings = _cameras(given, tensors)
        with_radii = requires_gradient(tensors.inputs.values()) and not with_ut
        call = GaussianCall(
            client=default_client(target),
            settings=GaussianSettings(
                semantics="gsplat",
                sh_degree=None if tensors.inputs["sh"] is None else sh_degree,
                antialiased=rasterize_mode == "antialiased",
                eps2d=eps2d,
                near=near_plane or LEAST_NEAR,
                far=far_plane,
                radius_clip=radius_clip,
                **settings,
            ),
            cameras=cameras,
            batch=tensors.batch,
            outputs=(*_images(given), *(("radii",) if with_radii else ())),
            sparse=is_sparse,
        )
        frame = run(call, tensors.inputs)
    radii = tensors.placed(torch.from_numpy(frame.radii)) if with_radii else None
    rows.seen = None if radii is None else (radii > 0).all(dim=-1).any(dim=-2)
    values = _values(given, call, tensors, radii)
    images = with_derived(_images_of(given, values, call, frame, tensors))
    images = {name: tensors.placed(image) for name, image in images.items()}
    size = frame.request.cameras[0].width, frame.request.cameras[0].height
    meta = meta_of(values, tensors, size, tile_size, boxes=with_ut, tiles=tensors.inputs["azimuths"] is None)
    if extra_signals is not None:
        meta["render_extra_signals"] = images["color"][..., -extra_signals.shape[-1] :]
        images["color"] = images["color"][..., : -extra_signals.shape[-1]]
    if return_normals:
        meta["normals"] = images["normals"]
    return picture(images, render_mode), images["alpha"][..., None], meta


@torch.no_grad()
def fully_fused_projection_with_ut(
    means: torch.Tensor,
    quats: torch.Tensor,
    scales: torch.Tensor,
    opacities: torch.Tensor | None,
    viewmats: torch.Tensor,
    Ks: torch.Tensor,
    width: int,
    height: int,
    eps2d: float = 0.3,
    near_plane: float = 0.01,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    calc_compensations: bool = False,
    camera_model: str = "pinhole",
    ut_params: Any = None,
    radial_coeffs: torch.Tensor | None = None,
    tangential_coeffs: torch.Tensor | None = None,
    thin_prism_coeffs: torch.Tensor | None = None,
    ftheta_coeffs: Any = None,
    lidar_coeffs: Any = None,
    external_distortion_coeffs: Any = None,
    rolling_shutter: Any = None,
    viewmats_rs: torch.Tensor | None = None,
    global_z_order: bool = True,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, None]:
    """Projects Gaussians by sigma points on a worker; as in gsplat nothing has a gradient.

    The arguments are those of `rasterization`; `opacities` may be None, and `calc_compensations` must be False, as no
    picture through real lenses is compensated for the blur.

    Returns:
        radii int32 [.., C, N, 2], pixels; means2d [.., C, N, 2], pixels; depths [.., C, N]; conics [.., C, N, 3]; None.

    Raises:
        GsplatArgumentError: an argument is invalid.
    """
    if calc_compensations:
        raise GsplatArgumentError.of("calc_compensations", "expected False with sigma points, got True; leave it out")
    given = {name: value for name, value in locals().items() if name != "calc_compensations"}
    given["opacities"] = torch.ones_like(means[..., 0]) if opacities is None else opacities
    meta = rasterization(
        **given, colors=None, render_mode="D", packed=False, with_ut=True, with_eval3d=camera_model == "lidar"
    )[2]
    return meta["radii"], meta["means2d"], meta["depths"], meta["conics"], None


def _images_of(
    given: Mapping[str, Any], values: Intermediates, call: GaussianCall, frame: Frame, tensors: Prepared
) -> dict[str, torch.Tensor]:
    """Returns the images [V, H, W, ...], as part of the graph if an input is."""
    if not requires_gradient(tensors.inputs.values()):
        return {name: torch.from_numpy(frame[name]) for name in IMAGES if name in frame}
    layout = values.layout
    if given["with_eval3d"]:
        # Projected centres have no gradient along rays, as in gsplat.
        return draw(Rendering(call, frame, layout), None, None, tensors.inputs)
    rendering = Rendering(call, frame, layout, given["absgrad"])
    empty = torch.empty(*layout.rows, 2, dtype=torch.float32, device=layout.device)
    values.centres, echo = project(rendering, empty, tensors.inputs)
    return draw(rendering, values.centres, echo, tensors.inputs, lambda: values.is_read)


def _prepared(given: Mapping[str, Any]) -> Prepared:
    """Returns the checked inputs; extra signals are channels after the colours."""
    means, scales, colors = (given[name] for name in ("means", "scales", "colors"))
    sh_degree, backgrounds, signals = (given[name] for name in ("sh_degree", "backgrounds", "extra_signals"))
    # gsplat uses only squares of scales, and optimisers that step them without an activation may make them negative.
    scales = scales.abs() if isinstance(scales, torch.Tensor) else scales
    if "RGB" not in given["render_mode"]:
        colors, sh_degree, backgrounds = None, None, None
    if sh_degree is not None and has_harmonics_per_camera(colors, means):
        views = given["viewmats"], given["viewmats_rs"]
        colors, sh_degree = colors_per_camera(colors, sh_degree, means, *views), None
    arguments = {**given, "scales": scales, "colors": colors, "sh_degree": sh_degree, "backgrounds": backgrounds}
    if signals is not None:
        _scene_of({**arguments, "backgrounds": None})
        degree = given["extra_signals_sh_degree"]
        views = given["viewmats"], given["viewmats_rs"]
        arguments |= {"colors": with_signals(colors, sh_degree, signals, degree, means, views), "sh_degree": None}
        if isinstance(backgrounds, torch.Tensor) and backgrounds.shape[-1] == colors.shape[-1]:
            # Signals have the background 0, unless they have their own.
            arguments |= {"backgrounds": torch.nn.functional.pad(backgrounds, (0, signals.shape[-1]))}
    return _scene_of(arguments)


def _scene_of(arguments: Mapping[str, Any]) -> Prepared:
    names = ("means", "quats", "scales", "opacities", "viewmats", "sh_degree")
    colors = arguments["colors"]
    if colors is None and "RGB" not in arguments["render_mode"]:
        colors = no_colors(arguments["means"])
    return prepared(
        **{name: arguments[name] for name in names}, colors=colors, Ks=intrinsics_of(arguments),
        background=arguments["backgrounds"], covariances=arguments["covars"],
    )  # fmt: skip


def _values(
    given: Mapping[str, Any], call: GaussianCall, tensors: Prepared, radii: torch.Tensor | None
) -> Intermediates:
    """Returns the values of each Gaussian in `meta`, which are computed when they are read."""
    compute: Callable[[str], torch.Tensor]
    if given["with_ut"]:
        compute = SecondCall(Snapshot(tensors.inputs), call, tensors)
    else:
        film = Film(
            given["width"], given["height"], given["eps2d"], given["near_plane"] or LEAST_NEAR, given["far_plane"],
            given["radius_clip"], given["camera_model"], call.settings.antialiased,
        )  # fmt: skip
        names = ("means", "quats", "scales", "opacities", "viewmats", "Ks", "covars")
        # NumPy arrays are rendered, too, as constants.
        passed = {
            name: it if it is None or isinstance(it, torch.Tensor) else torch.as_tensor(it, device="cpu")
            for name, it in zip(names, map(given.get, names), strict=True)
        }
        covars = passed.pop("covars")
        passed |= {"covars": None} if covars is None else {"covars": six_numbers(covars), "quats": None, "scales": None}
        compute = Jacobian(Snapshot(passed), film, radii)
    return Intermediates(compute, (*tensors.views, tensors.count), tensors.device, given["packed"])


def _cameras(
    given: Mapping[str, Any], tensors: Prepared
) -> tuple[Prepared, ViewMatrices | SensorMatrices, dict[str, Any]]:
    """Returns the inputs including lenses, the cameras, and the settings of sensors, by gsplat's conventions."""
    if not given["with_ut"]:
        check_without(given)
        if not given["with_eval3d"]:
            return tensors, ViewMatrices(given["width"], given["height"], projection_of(given["camera_model"])), {}
    # The limits of lenses are those of sigma points: by the Jacobian a fisheye shows all that is in front of it.
    cameras, inputs = sensors(given, tensors.views, "gsplat" if given["with_ut"] else "monotone")
    tensors = replace(tensors, inputs={**tensors.inputs, **inputs})
    return tensors, cameras, sensor_settings(given)


def _images(given: Mapping[str, Any]) -> tuple[str, ...]:
    mode = given["render_mode"]
    wanted = {
        "color": "RGB" in mode or given["extra_signals"] is not None,
        "depth": "D" in mode,
        "hit_distance": "d" in mode,
        "normals": given["return_normals"],
    }
    return (*(name for name, is_wanted in wanted.items() if is_wanted), "transmittance")


def upper_triangles(covars: Any) -> Any:
    """Returns symmetric matrices [.., 3, 3] of upper triangles, which alone get a gradient; other values unchanged."""
    if not isinstance(covars, torch.Tensor) or covars.shape[-2:] != (3, 3):
        return covars
    return covars.triu() + covars.triu(1).mT


def no_colors(means: torch.Tensor) -> torch.Tensor:
    """Returns placeholder colours, for outputs that do not depend on colours."""
    if not isinstance(means, torch.Tensor):
        raise GsplatArgumentError.of("means", f"expected a tensor, got {type(means).__name__}")
    return torch.zeros(*means.shape[:-1], 1, device="cpu")


def picture(images: dict[str, torch.Tensor], render_mode: str) -> torch.Tensor:
    """Returns the picture [.., H, W, X] of a mode: colours, a depth, or both."""
    parts = [images["color"]] if "RGB" in render_mode else []
    if render_mode != "RGB":
        name = "hit_distance" if "d" in render_mode else "depth"
        parts.append(images[f"expected_{name}" if "E" in render_mode else name][..., None])
    return torch.cat(parts, dim=-1) if len(parts) > 1 else parts[0]
