"""Pulsar's `Renderer`: the module that PyTorch3D users have, with the rendering on a worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from lumigrad.client.base.arrays import Array
from lumigrad.client.compat.pulsar.checks import (
    EPS,
    MAX_UINT,
    ForwardArguments,
    RendererLimits,
    check_cam_params,
    check_forward,
    on_backward,
    on_forward,
    pulsar_refusals,
)
from lumigrad.client.compat.pulsar.rays import Vectors, camera_vectors
from lumigrad.client.default import default_client
from lumigrad.client.operators.call import SphereCall
from lumigrad.client.rendering.frame import Frame
from lumigrad.client.settings.spheres import SphereSettings
from lumigrad.client.torch.remote import compute, outside_graphs, refuse_backward

Image = torch.Tensor
ImageAndInfo = tuple[torch.Tensor, torch.Tensor | None]


class Renderer(torch.nn.Module):
    """Renders spheres as PyTorch3D's class of this name does, on a worker; gradients included.

    The picture, the forward info and the gradients are the original's, its approximations included. Two differences
    are deliberate: each element of a batch uses its own row of `opacity`, and where the original gives NaN the result
    is the limit or 0.
    """

    device_tracker: torch.Tensor

    def __init__(
        self,
        width: int,
        height: int,
        max_num_balls: int,
        orthogonal_projection: bool = False,
        right_handed_system: bool = False,
        background_normalized_depth: float = EPS,
        n_channels: int = 3,
        n_track: int = 5,
        *,
        target: str | None = None,
    ) -> None:
        """Checks the arguments; only `forward` calls the worker.

        Args:
            width: picture width, pixels, > 1.
            height: picture height, pixels, > 1.
            max_num_balls: most spheres that `forward` accepts.
            orthogonal_projection: parallel rays; cam_params then have focal length 0.
            right_handed_system: the camera looks along -z instead of +z.
            background_normalized_depth: normalised closeness of the background, in (0, 1).
            n_channels: K, colour channels.
            n_track: spheres per pixel that are recorded and get gradients, 1 to 128.
            target: the worker's address; None: LUMIGRAD_TARGET, else localhost:50051.
        """
        super().__init__()
        # The original's name, because PyTorch3D's PulsarPointsRenderer reads this attribute.
        self._renderer = RendererLimits(
            width, height, max_num_balls, orthogonal_projection, right_handed_system, background_normalized_depth,
            n_channels, n_track,
        )  # fmt: skip
        self._renderer.check()
        self._target = target
        # The tracker's device is the module's: inputs must be on it, and results are.
        self.register_buffer("device_tracker", torch.zeros(1))

    def extra_repr(self) -> str:
        """Returns the line that print(module) shows."""
        limits = self._renderer
        return (
            f"width={limits.width}, height={limits.height}, max_num_balls={limits.max_num_balls}, "
            f"orthogonal_projection={limits.orthogonal}, right_handed_system={limits.right_handed}, "
            f"n_channels={limits.n_channels}, n_track={limits.n_track}, device={self.device_tracker.device}, "
            f"target={self._target}"
        )

    @outside_graphs
    def forward(
        self,
        vert_pos: torch.Tensor,
        vert_col: torch.Tensor,
        vert_rad: torch.Tensor,
        cam_params: torch.Tensor,
        gamma: float,
        max_depth: float,
        min_depth: float = 0.0,
        bg_col: torch.Tensor | None = None,
        opacity: torch.Tensor | None = None,
        percent_allowed_difference: float = 0.01,
        max_n_hits: int = MAX_UINT,
        mode: int = 0,
        return_forward_info: bool = False,
        first_R_then_T: bool = False,
    ) -> Image | ImageAndInfo:
        """Renders a picture, or a batch of them.

        Args:
            vert_pos: [B, N, 3] or [N, 3] centres, world frame, scene units.
            vert_col: [B, N, K] or [N, K] colours.
            vert_rad: [B, N] or [N] radii, scene units, > 0.
            cam_params: [B, 8 | 10 | 11 | 13] or without B: position (3), rotation as axis-angle (3) or six-D (6), focal
                length, sensor width, and for 10 and 13 the principal point offset in pixels (2).
            gamma: softness of the depth blending, in [1e-5, 1].
            max_depth: far end of the depth range, scene units.
            min_depth: near end; 0: just behind the film.
            bg_col: [K] background; None: all 1.
            opacity: [B, N] or [N] in [0, 1]; None: all 1.
            percent_allowed_difference: share of the colour that stopping early may cost, in [0, 1).
            max_n_hits: pixels may stop after this many spheres.
            mode: 0: the picture; 1: how many spheres each pixel hit, without gradients.
            return_forward_info: return a pair, the second of which is the forward info (None in mode 1).
            first_R_then_T: rotate the camera's position too.

        Returns:
            [B, H, W, K] or [H, W, K], in mode 1 with one channel, on the module's device; with `return_forward_info`
            also [B, H, W, 3 + 2 n_track] or without B.
        """
        check_cam_params(cam_params)
        # Tensors with one element are converted to numbers too.
        arguments = ForwardArguments(
            vert_pos, vert_col, vert_rad, cam_params, float(gamma), float(max_depth), float(min_depth), bg_col, opacity,
            float(percent_allowed_difference), int(max_n_hits), int(mode),
        )  # fmt: skip
        on_forward(arguments)
        check_forward(arguments, self._renderer, self.device_tracker.device)
        with pulsar_refusals():
            call = self._call(arguments, return_forward_info, first_R_then_T)
            results = [compute(call, element) for element in _elements(arguments)]
        if mode == 1:
            # The original raises this error too.
            error = ValueError("mode 1 counts hits, which has no gradient; render with mode=0 for backward")
            images = [
                refuse_backward(result["hits"][..., None].float(), _inputs(arguments), error) for result in results
            ]
        else:
            images = [result["color"] for result in results]
        image = self._joined(images, arguments.batched)
        if not return_forward_info:
            return image
        if mode == 1:
            return image, None
        # Joined as integers, because the ids among the floats are bit patterns.
        info = self._joined([result["info"].view(torch.int32) for result in results], arguments.batched)
        return image, info.view(torch.float32)

    @staticmethod
    def sphere_ids_from_result_info_nograd(result_info: torch.Tensor) -> torch.Tensor:
        """Returns the ids of the tracked spheres, closest first, -1 for none.

        Args:
            result_info: [B, H, W, 3 + 2 T] or [H, W, 3 + 2 T] forward info.

        Returns:
            int32 [B, H, W, T]; B is 1 for an input without it.
        """
        info = result_info[None] if result_info.ndim == 3 else result_info
        # Converted to integers first, because arithmetic on floats could change the bits of the ids.
        return info.detach().view(torch.int32)[..., 3::2].contiguous()

    @staticmethod
    def depth_map_from_result_info_nograd(result_info: torch.Tensor) -> torch.Tensor:
        """Returns [..., H, W], the depth of the closest sphere, scene units, -1 for none, from the forward info."""
        return result_info.detach()[..., 4]

    @staticmethod
    def _transform_cam_params(
        cam_params: torch.Tensor,
        width: int,
        height: int,
        orthogonal: bool,
        right_handed: bool,
        first_R_then_T: bool = False,
    ) -> Vectors:
        """Returns the camera in world coordinates; see `camera_vectors`."""
        return camera_vectors(cam_params, width, height, orthogonal, right_handed, first_R_then_T)

    def _call(self, arguments: ForwardArguments, with_info: bool, first_r_then_t: bool) -> _Call:
        limits = self._renderer
        # float32 rounds values close to 1 up to 1, which the worker refuses.
        allowed = min(np.float32(arguments.percent_allowed_difference), np.float32(1.0) - np.float32(EPS))
        settings = SphereSettings(
            gamma=arguments.gamma,
            max_depth=arguments.max_depth,
            min_depth=arguments.effective_min_depth,
            semantics="compat",
            background=() if arguments.bg_col is None else tuple(arguments.bg_col.detach().tolist()),
            allowed_difference=float(allowed),
            max_hits=0 if arguments.max_n_hits >= MAX_UINT else arguments.max_n_hits,
            n_track=limits.n_track,
            background_depth=limits.background_normalized_depth,
        )

        image = "color" if arguments.mode == 0 else "hits"
        return _Call(
            client=default_client(self._target),
            settings=settings,
            camera=None,
            size=(limits.width, limits.height),
            outputs=(image, "info") if with_info and arguments.mode == 0 else (image,),
            orthogonal=limits.orthogonal,
            right_handed=limits.right_handed,
            first_r_then_t=first_r_then_t,
        )

    def _joined(self, elements: Sequence[torch.Tensor], batched: bool) -> torch.Tensor:
        joined = torch.stack(list(elements)) if batched else elements[0]
        return joined.to(self.device_tracker.device)


class _Call(SphereCall):
    """A call that warns of gradients that are practically zero."""

    def gradients(
        self, result: Frame, upstream: Mapping[str, Any], wanted: tuple[str, ...], release: bool
    ) -> Mapping[str, Array]:
        """Returns the gradients of a rendered frame, as `SphereCall.gradients` does."""
        on_backward(wanted, self.settings.gamma)
        return super().gradients(result, upstream, wanted, release)


def _inputs(arguments: ForwardArguments) -> list[torch.Tensor]:
    every = (arguments.vert_pos, arguments.vert_col, arguments.vert_rad, arguments.opacity, arguments.cam_params)
    return [tensor for tensor in every if tensor is not None]


def _elements(arguments: ForwardArguments) -> list[dict[str, torch.Tensor | None]]:
    """Returns the inputs of `SphereCall` for each element of the batch, on the host."""
    points = {
        "positions": arguments.vert_pos,
        "colors": arguments.vert_col,
        "radii": arguments.vert_rad,
        "opacities": arguments.opacity,
    }
    # Inputs without a batch axis get one of length 1.
    host = {name: tensor.cpu() for name, tensor in points.items() if tensor is not None}
    cameras = arguments.cam_params.cpu()
    if not arguments.batched:
        host, cameras = {name: tensor[None] for name, tensor in host.items()}, cameras.reshape(1, -1)
    absent = dict.fromkeys((*points, "background", "gamma"))
    return [
        {**absent, **{name: tensor[index] for name, tensor in host.items()}, "cameras": camera}
        for index, camera in enumerate(cameras)
    ]
