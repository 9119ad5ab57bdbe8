"""The drop-in for gsplat without a worker: lists of tiles, the dictionary, and refusals of options."""

from __future__ import annotations

import inspect

import numpy as np
import pytest
import torch

from lumigrad.client import InvalidArgument
from lumigrad.client.compat.gsplat import (
    GsplatArgumentError,
    RendererConfig,
    RendererConfig_ParallelBatch,
    options,
    rasterization,
)
from lumigrad.client.compat.gsplat.meta import Meta
from lumigrad.client.compat.gsplat.tiles import Projected, intersect
from support.calls.metrics_table import rows, words
from support.files.documents import ROOT

GUIDE = ROOT / "docs" / "porting_gsplat.md"

# The parameters of gsplat 1.6, in order.
PARAMETERS = (
    "means quats scales opacities colors viewmats Ks width height near_plane far_plane radius_clip eps2d sh_degree "
    "packed tile_size backgrounds render_mode sparse_grad absgrad rasterize_mode channel_chunk distributed "
    "camera_model segmented covars with_ut with_eval3d return_normals global_z_order rays radial_coeffs "
    "tangential_coeffs thin_prism_coeffs ftheta_coeffs lidar_coeffs external_distortion_coeffs rolling_shutter "
    "viewmats_rs ut_params extra_signals extra_signals_sh_degree renderer_config"
)
DEFAULTS = {
    "near_plane": 0.01,
    "far_plane": 1e10,
    "radius_clip": 0.0,
    "eps2d": 0.3,
    "sh_degree": None,
    "packed": True,
    "tile_size": None,
    "backgrounds": None,
    "render_mode": "RGB",
    "sparse_grad": False,
    "absgrad": False,
    "rasterize_mode": "classic",
    "channel_chunk": 32,
    "camera_model": "pinhole",
    "segmented": False,
    "covars": None,
    "global_z_order": True,
}
TENSORS = (torch.zeros(3, 3), torch.ones(3, 4), torch.ones(3, 3), torch.ones(3), torch.ones(3, 3), torch.eye(4)[None],
           torch.eye(3)[None], 8, 6)  # fmt: skip


class Newer(RendererConfig):
    pass


def test_the_signature_is_the_original_s():
    parameters = inspect.signature(rasterization).parameters
    positional = [name for name, parameter in parameters.items() if parameter.kind is not parameter.KEYWORD_ONLY]
    assert " ".join(positional) == PARAMETERS
    assert {name: parameters[name].default for name in DEFAULTS} == DEFAULTS
    assert parameters["target"].default is None


def test_several_ranks_are_refused_with_the_reason_and_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    text = r"^distributed is not supported here: expected False with 2 ranks, got True; gsplat exchanges .* a socket"
    with pytest.raises(NotImplementedError, match=text):
        rasterization(*TENSORS, distributed=True, target="localhost:1")


def test_the_porting_guide_has_the_reasons_of_the_refusals():
    table = {}
    for option, *reasons in rows(GUIDE.read_text(), "option", "why it is refused", "what to do instead"):
        texts = tuple(reason.replace("`", "") for reason in reasons)
        table |= dict.fromkeys((name.partition("=")[0] for name in words(option)), texts)
    assert table == {"distributed": (options.WHY, options.INSTEAD)}


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"render_mode": "rgb"}, GsplatArgumentError, "render_mode: expected one of RGB, D, ED, .* got 'rgb'"),
        (
            {"camera_model": "round"},
            GsplatArgumentError,
            "camera_model: expected one of pinhole, ortho, fisheye, ftheta, lidar, got",
        ),
        ({"with_ut": True}, GsplatArgumentError, "packed: expected False with with_ut=True, got True"),
        (
            {"with_ut": True, "packed": False, "covars": torch.zeros(3, 3, 3)},
            GsplatArgumentError,
            "covars: expected None with with_ut=True",
        ),
        (
            {"with_ut": True, "packed": False, "tile_size": 8},
            GsplatArgumentError,
            "tile_size: expected None, 4 or 16 with with_ut=True, with_eval3d=False, got 8",
        ),
        (
            {"renderer_config": object()},
            TypeError,
            "renderer_config: expected an instance of .*, got object; leave it out",
        ),
        (
            {"renderer_config": Newer()},
            NotImplementedError,
            "renderer_config: expected an instance of .*, got Newer; leave",
        ),
        (
            {"renderer_config": RendererConfig_ParallelBatch()},
            ValueError,
            "renderer_config: .*, got RendererConfig_ParallelBatch; pass with_eval3d=True",
        ),
        (
            {"extra_signals": torch.zeros(3, 4, 2), "extra_signals_sh_degree": 2},
            GsplatArgumentError,
            r"extra_signals: expected at least 9 coefficients, got shape \[3, 4, 2\]; lower",
        ),
        ({"render_mode": "Ed"}, GsplatArgumentError, "render_mode: 'Ed' needs with_eval3d=True"),
        ({"rays": torch.zeros(1, 6)}, GsplatArgumentError, r"rays: a tensor \[1, 6\] needs with_eval3d=True"),
        *(
            ({name: torch.zeros(1, 6)}, GsplatArgumentError, f"{name}: expected None without with_ut=True")
            for name in ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs", "ftheta_coeffs", "viewmats_rs")
        ),
        ({"global_z_order": False}, GsplatArgumentError, "global_z_order: expected True without with_ut=True"),
        ({"rolling_shutter": 2}, GsplatArgumentError, "rolling_shutter: expected GLOBAL without with_ut=True"),
        ({"tile_size": 0}, GsplatArgumentError, "tile_size: expected a whole number from 1"),
        ({"covars": torch.zeros(3, 6)}, AssertionError, r"covars: expected shape \[3, 3, 3\], got \[3, 6\]"),
        ({"sh_degree": 1}, InvalidArgument, r"colors: expected shape \[3, K, D\], got \[3, 3\]"),
        ({"near_plane": "here"}, InvalidArgument, "near_plane: expected a number, got 'here'"),
        ({"speed": 3}, TypeError, "rasterization.* got an unexpected keyword argument 'speed'"),
    ],
)
def test_wrong_arguments_are_explained(options, error, text):
    with pytest.raises(error, match=f"^{text}"):
        rasterization(*TENSORS, **options, target="localhost:1")


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (0, torch.zeros(3), r"means: expected shape \[.., N, 3\], got \[3\]"),
        (4, None, "colors: expected a tensor"),
        (5, torch.zeros(1, 3, 4), r"viewmats: expected shape \[C, 4, 4\], got \[1, 3, 4\]"),
        (6, torch.zeros(1, 3, 3), "Ks: expected a focal length in pixels > 0, got 0.0"),
        (7, 0, "width: expected a whole number of pixels from 1 to 2147483647, got 0"),
    ],
)
def test_wrong_tensors_are_explained(position, value, text):
    with pytest.raises(GsplatArgumentError, match=f"^{text}") as error:
        rasterization(*TENSORS[:position], value, *TENSORS[position + 1 :], target="localhost:1")
    # Programs catch one of these types, depending on the version of gsplat they were written for.
    assert all(isinstance(error.value, kind) for kind in (AssertionError, ValueError, RuntimeError))


@pytest.mark.parametrize(
    ("position", "value", "text"),
    [
        (4, torch.zeros(2, 3, 4, 3), r"colors: expected shape \[1, 3, K, D\], got \[2, 3, 4, 3\]"),
        (4, torch.zeros(1, 3, 3, 3), "sh_degree: expected a degree from 0 to 4 whose"),
    ],
)
def test_harmonics_per_camera_that_do_not_fit_are_refused(position, value, text):
    given = [*TENSORS[:4], torch.zeros(1, 3, 4, 3), *TENSORS[5:]]
    given[position] = value
    with pytest.raises(GsplatArgumentError, match=f"^{text}"):
        rasterization(*given, sh_degree=1, target="localhost:1")


def projected(count: int, images: int) -> Projected:
    generator = np.random.default_rng(7)
    turn, spread = generator.uniform(0, np.pi, count), np.exp(generator.uniform(0, 2.5, (count, 2)))
    axes = np.stack([np.cos(turn), np.sin(turn), -np.sin(turn), np.cos(turn)], -1).reshape(-1, 2, 2)
    conics = np.linalg.inv(np.swapaxes(axes, 1, 2) @ (axes * spread[:, :, None] ** 2))
    radii = generator.integers(0, 3, (count, 2))
    return Projected(
        torch.from_numpy(np.sort(generator.integers(0, images, count))),
        torch.from_numpy(generator.uniform(-20, 120, (count, 2)).astype(np.float32)),
        torch.from_numpy(radii.astype(np.int32)),
        torch.from_numpy(conics[:, (0, 0, 1), (0, 1, 1)].astype(np.float32)),
        torch.from_numpy(generator.uniform(0, 1, count).astype(np.float32)),
        torch.from_numpy(generator.uniform(1, 2, count).astype(np.float32).round(1)),
    )


def touched(gaussians: Projected, index: int, left: float, top: float, size: int) -> bool:
    """Whether the ellipse has a point in the square, by trying many of the square's points."""
    steps = np.linspace(0, size, 81)
    x = left + steps[None] - float(gaussians.means2d[index, 0])
    y = top + steps[:, None] - float(gaussians.means2d[index, 1])
    a, b, c = gaussians.conics[index].double().tolist()
    level = min(3.33**2, 2 * np.log(255 * float(gaussians.opacities[index])))
    return bool((a * x * x + 2 * b * x * y + c * y * y <= level).any())


def test_lists_have_every_tile_that_an_ellipse_touches_in_the_order_of_depth():
    count, images, size, width, height = 120, 3, 16, 6, 5
    gaussians = projected(count, images)
    lists = intersect(gaussians, images, size, width, height)
    seen = (gaussians.radii > 0).all(-1) & (gaussians.opacities > 1 / 255)
    offsets = [*lists.offsets.flatten().tolist(), len(lists.flatten_ids)]
    counts = torch.zeros(count, dtype=torch.int32)
    for tile in range(images * width * height):
        found = lists.flatten_ids[offsets[tile] : offsets[tile + 1]].tolist()
        image, place = divmod(tile, width * height)
        row, column = divmod(place, width)
        for index in range(count):
            inside = bool(seen[index]) and int(gaussians.images[index]) == image
            if inside and touched(gaussians, index, column * size, row * size, size):
                assert index in found
            if index in found:
                assert inside and touched(gaussians, index, column * size - 0.5, row * size - 0.5, size + 1)
                counts[index] += 1
        assert found == sorted(found, key=lambda index: (float(gaussians.depths[index]), index))
        keys = lists.isect_ids[offsets[tile] : offsets[tile + 1]]
        assert (keys >> 32 == (image << 5) + place).all()
        bits = (keys & 0xFFFFFFFF).int().view(torch.float32)
        assert torch.equal(bits, gaussians.depths[found])
    assert torch.equal(lists.tiles_per_gauss, counts)
    assert counts.sum() > 100
    assert lists.offsets.shape == (images, height, width)
    assert lists.offsets.dtype == lists.flatten_ids.dtype == lists.tiles_per_gauss.dtype == torch.int32


def test_no_gaussians_have_no_tiles():
    empty = Projected(
        torch.zeros(0).long(), *(torch.zeros(0, size) for size in (2, 2, 3)), torch.zeros(0), torch.zeros(0)
    )
    lists = intersect(empty, 2, 16, 3, 2)
    assert not len(lists.isect_ids) and not lists.offsets.any() and lists.offsets.shape == (2, 2, 3)


def test_later_values_are_computed_once_and_only_if_read():
    computed = []

    def made() -> dict:
        computed.clear()
        return Meta({"a": 1, "b": None}, {"b": lambda: computed.append("b") or 2})

    meta = made()
    assert list(meta) == ["a", "b"] and "b" in meta and len(meta) == 2 and not computed
    assert meta["b"] == 2 and meta["b"] == 2 and computed == ["b"]
    for read in (
        lambda: made().get("b"),
        lambda: made().pop("b"),
        lambda: dict(made())["b"],
        lambda: {**made()}["b"],
        lambda: list(made().values())[1],
        lambda: dict(made().items())["b"],
        lambda: made().copy()["b"],
        lambda: (made() | {})["b"],
    ):
        assert read() == 2
    assert made().get("c", 3) == 3 and made().pop("c", 3) == 3
    with pytest.raises(KeyError):
        made()["c"]
