"""The comparisons of `make gpu-peers`, with stand-ins for the peers; and which peers of the pack fit a machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from support import gpu_peers
from tests.gpu import cases as ours
from tests.gpu import context, peer_pack, peers, table
from tests.gpu.context import write_json
from tests.gpu.device import Device
from tests.gpu.runner import NotHere, run_cases

MANIFEST: dict[str, Any] = {
    "name": "gsplat", "version": "1", "commit": "c", "torch": torch.__version__,
    "python": f"{sys.version_info.major}.{sys.version_info.minor}", "arch": ["90"],
}  # fmt: skip


@pytest.fixture
def pack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack, an empty SITE, and a device of compute capability 9.0."""
    monkeypatch.setattr(peer_pack, "PACK", tmp_path / "pack")
    monkeypatch.setattr(peer_pack, "SITE", tmp_path / "site")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    return tmp_path / "pack"


def packed(pack: Path, **changes: Any) -> None:
    folder = pack / "peers" / "gsplat"
    (folder / "gsplat_of_the_pack").mkdir(parents=True)
    (folder / "gsplat_of_the_pack" / "__init__.py").write_text("rasterization = 7\n", encoding="utf-8")
    (folder / "LICENSE").touch()
    write_json(folder / "peer.json", {**MANIFEST, **changes})


def test_each_peer_is_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_peers.install(monkeypatch)
    device, file = Device("emulation"), tmp_path / "peers.json"
    write_json(file, {"cases": {}})
    with device.engines():
        assert run_cases(peers.cases(device), device, file, time.monotonic() + 600.0) == 0
    cases = context.read_json(file)["cases"]
    compared = {name: case for name, case in cases.items() if case["status"] == "ok"}
    assert all(case["agrees"] and case["tolerance"] > 0 for case in compared.values()), compared
    assert {name for name in cases if name.startswith("gsplat, ")} == {f"gsplat, {scene}" for scene in ours.SCENES}
    skipped = {name: case["why"] for name, case in cases.items() if name not in compared}
    assert all(name.startswith("gsplat, ") and "LUMIGRAD_TEST_DATA" in why for name, why in skipped.items()), skipped
    gsplat = compared["gsplat, 1M"]
    assert list(gsplat["ops"]) == ["forward", "backward", "forward, not retained", "picture beside HiGS"]
    assert gsplat["differences"]["picture beside HiGS"]["mean"] > 0
    assert {"picture", "positions", "colors", "radii"} == set(compared["PyTorch3D's Pulsar, 1M spheres"]["differences"])
    pair = compared["Warp, 100k points and a mesh of 70k triangles"]["ops"]["points near"]
    latency, row = (
        f"{pair['ours'][f'{regime}_ms']} / {pair['theirs'][f'{regime}_ms']} = {pair['faster'][regime]:.2f}x"
        for regime in ("latency", "throughput")
    )
    line = f"| Warp, 100k points and a mesh of 70k triangles | points near | {latency} | {row} | yes |"
    assert line in table.text(tmp_path, "emulation")


def test_a_peer_without_an_inference_path_is_compared_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_peers.install(monkeypatch)
    monkeypatch.setitem(sys.modules, "gsplat.experimental.render", None)
    device = Device("emulation")
    with device.engines():
        found = peers._gsplat(device, ours.SCENES["1M"](device))
    assert list(found["ops"]) == ["forward", "backward", "forward, not retained"]
    assert "no inference path" in found["why"]


def test_a_peer_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_peers.install(monkeypatch)
    right = gpu_peers._inference
    brighter = lambda *of, **more: type("", (), {"frame": 1.02 * right(*of, **more).frame})  # noqa: E731
    monkeypatch.setattr(sys.modules["gsplat.experimental.render"], "rasterize_gaussian_inference_scene", brighter)
    device = Device("emulation")
    with device.engines():
        found = peers._gsplat(device, ours.SCENES["1M"](device))
    assert not found["agrees"]
    assert found["differences"]["picture"]["largest"] < 1e-3
    assert found["differences"]["picture beside HiGS"]["largest"] > 0.01


def test_peers_that_fit_are_linked(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(pack)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert peer_pack.install() == {"gsplat": "ok"}
    # A second run changes nothing.
    peer_pack.install()
    assert sorted(path.name for path in (tmp_path / "site").iterdir()) == ["gsplat_of_the_pack", "peers.json"]
    assert peer_pack.load("gsplat_of_the_pack").rasterization == 7


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"torch": "2.0.0+cu118"}, "built for torch 2.0.0+cu118, here is"),
        ({"python": "3.7"}, "built for Python 3.7, here is"),
        ({"arch": ["80"]}, "built for sm_80, here is sm_90"),
    ],
)
def test_peers_that_do_not_fit_are_not_here(pack: Path, changes: Any, why: str) -> None:
    packed(pack, **changes)
    assert why in peer_pack.install()["gsplat"]
    with pytest.raises(NotHere, match=f"No module named 'gsplat.*{why[:20]}"):
        peer_pack.load("gsplat.nothing_of_that_name")
    with pytest.raises(NotHere, match="not in the pack"):
        peer_pack.load("no_such_peer")


def test_pure_packages_fit_every_torch(pack: Path) -> None:
    assert peer_pack.misfit({**MANIFEST, "torch": None, "python": None}) == ""
