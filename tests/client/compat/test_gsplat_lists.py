"""The drop-in for gsplat without a worker: lists of tiles, the dictionary, and refusals of options."""

from __future__ import annotations

import copy
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

# The parameters of gsplat 1.6, in order, with their defaults.
PARAMETERS = (
    "means quats scales opacities colors viewmats Ks width height near_plane=0.01 far_plane=10000000000.0 "
    "radius_clip=0.0 eps2d=0.3 sh_degree=None packed=True tile_size=None backgrounds=None render_mode='RGB' "
    "sparse_grad=False absgrad=False rasterize_mode='classic' channel_chunk=32 distributed=False "
    "camera_model='pinhole' segmented=False covars=None with_ut=False with_eval3d=False return_normals=False "
    "global_z_order=True rays=None radial_coeffs=None tangential_coeffs=None thin_prism_coeffs=None "
    "ftheta_coeffs=None lidar_coeffs=None external_distortion_coeffs=None rolling_shutter=None viewmats_rs=None "
    "ut_params=None extra_signals=None extra_signals_sh_degree=None renderer_config=None"
)
TENSORS = (torch.zeros(3, 3), torch.ones(3, 4), torch.ones(3, 3), torch.ones(3), torch.ones(3, 3), torch.eye(4)[None],
           torch.eye(3)[None], 8, 6)  # fmt: skip


class Newer(RendererConfig):
    pass


def test_the_signature_is_the_original_s():
    parameters = inspect.signature(rasterization).parameters
    positional = [each for each in parameters.values() if each.kind is not each.KEYWORD_ONLY]
    texts = [each.name if each.default is each.empty else f"{each.name}={each.default!r}" for each in positional]
    assert " ".join(texts) == PARAMETERS and parameters["target"].default is None


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


UNSCENTED = {"with_ut": True, "packed": False}
SENSORS = ("radial_coeffs", "tangential_coeffs", "thin_prism_coeffs", "ftheta_coeffs", "viewmats_rs")
WRONG = [
    ({"render_mode": "rgb"}, "render_mode: expected one of RGB, D, ED, .* got 'rgb'"),
    ({"camera_model": "round"}, "camera_model: expected one of pinhole, ortho, fisheye, ftheta, lidar, got"),
    ({"with_ut": True}, "packed: expected False with with_ut=True, got True"),
    ({**UNSCENTED, "covars": torch.zeros(3, 3, 3)}, "covars: expected None with with_ut=True"),
    ({**UNSCENTED, "tile_size": 8}, "tile_size: expected None, 4 or 16 with with_ut=True, with_eval3d=False, got 8"),
    ({"render_mode": "Ed"}, "render_mode: 'Ed' needs with_eval3d=True"),
    ({"rays": torch.zeros(1, 6)}, r"rays: a tensor \[1, 6\] needs with_eval3d=True"),
    *(({name: torch.zeros(1, 6)}, f"{name}: expected None without with_ut=True") for name in SENSORS),
    ({"global_z_order": False}, "global_z_order: expected True without with_ut=True"),
    ({"rolling_shutter": 2}, "rolling_shutter: expected GLOBAL without with_ut=True"),
    ({"tile_size": 0}, "tile_size: expected a whole number from 1"),
    ({"covars": torch.zeros(3, 6)}, r"covars: expected shape \[3, 3, 3\], got \[3, 6\]"),
    (
        {"extra_signals": torch.zeros(3, 4, 2), "extra_signals_sh_degree": 2},
        r"extra_signals: expected at least 9 coefficients, got shape \[3, 4, 2\]; lower",
    ),
]
OF_OTHER_TYPES = [
    (TypeError, {"renderer_config": object()}, "renderer_config: expected an instance of .*, got object; leave it out"),
    (
        NotImplementedError,
        {"renderer_config": Newer()},
        "renderer_config: expected an instance of .*, got Newer; leave",
    ),
    (
        ValueError,
        {"renderer_config": RendererConfig_ParallelBatch()},
        "renderer_config: .*, got RendererConfig_ParallelBatch; pass with_eval3d=True",
    ),
    (InvalidArgument, {"sh_degree": 1}, r"colors: expected shape \[3, K, D\], got \[3, 3\]"),
    (InvalidArgument, {"near_plane": "here"}, "near_plane: expected a number, got 'here'"),
    (TypeError, {"speed": 3}, "rasterization.* got an unexpected keyword argument 'speed'"),
]


@pytest.mark.parametrize(
    ("error", "options", "text"), [*((GsplatArgumentError, *row) for row in WRONG), *OF_OTHER_TYPES]
)
def test_wrong_arguments_are_explained(error, options, text):
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


def test_later_values_are_computed_once_and_only_if_read():
    computed = []

    def made() -> dict:
        computed.clear()
        return Meta({"a": 1, "b": None}, {"b": lambda: computed.append("b") or 2})

    meta = made()
    assert list(meta) == ["a", "b"] and "b" in meta and len(meta) == 2 and not computed
    assert meta["b"] == 2 and meta["b"] == 2 and computed == ["b"]
    meta = made()
    assert "<computed when read>" in repr(meta) and "_Later" not in repr(meta) and not computed
    assert made().get("b") == made().pop("b") == made().setdefault("b", 3) == 2 and made().popitem() == ("b", 2)
    for whole in (dict, Meta.copy, copy.copy, lambda it: {**it}, lambda it: it | {}, lambda it: {} | it):
        assert list(whole(made()).items()) == [("a", 1), ("b", 2)]
    assert list(made().values()) == [1, 2] and list(made().items()) == [("a", 1), ("b", 2)]
    assert made().get("c", 3) == made().pop("c", 3) == made().setdefault("c", 3) == 3
    for missing in (lambda: made()["c"], Meta({}, {}).popitem):
        with pytest.raises(KeyError):
            missing()
