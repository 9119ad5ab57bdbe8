"""The comparisons of `make gpu-peers`, with stand-ins for the peers; and what is built of the real ones."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from support import gpu_peers
from tests.gpu import context, peer_builds, peer_pack, peer_recipes, peers, table
from tests.gpu.context import Context, write_json
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


def within(folder: Path, seconds: float = 60.0) -> Context:
    return Context("cuda", folder, time.monotonic() + seconds)


def test_each_peer_is_compared_and_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_peers.install(monkeypatch)
    device, file = Device("emulation"), tmp_path / "peers.json"
    write_json(file, {"cases": {}})
    with device.engines():
        assert run_cases(peers.cases(device), device, file, time.monotonic() + 600.0) == 0
    cases = context.read_json(file)["cases"]
    skipped = [name for name, case in cases.items() if case["status"] != "ok"]
    assert skipped == ["Faster-GS, 1M Gaussians"], cases
    assert "licensed for research alone" in cases[skipped[0]]["why"]
    compared = {name: case for name, case in cases.items() if name not in skipped}
    assert all(case["agrees"] and case["tolerance"] > 0 for case in compared.values()), compared
    higs = compared["gsplat's inference path (HiGS), 1M Gaussians"]
    assert set(higs["ops"]) == set(higs["differences"]) == {"full precision", "half precision"}
    assert higs["differences"]["half precision"]["mean"] > 0
    assert {"picture", "positions", "colors", "radii"} == set(compared["PyTorch3D's Pulsar, 1M spheres"]["differences"])
    assert "| Warp, 100k points and a mesh of 70k triangles | points near |" in table.text(tmp_path, "emulation")


def test_a_peer_that_differs_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_peers.install(monkeypatch)
    right = gpu_peers._inference
    brighter = lambda *of, **more: type("", (), {"frame": 1.02 * right(*of, **more).frame})  # noqa: E731
    monkeypatch.setattr(sys.modules["gsplat.experimental.render"], "rasterize_gaussian_inference_scene", brighter)
    device = Device("emulation")
    with device.engines():
        found = peers._higs(device)
    assert not found["agrees"]
    assert found["differences"]["full precision"]["largest"] > 0.01


def test_peers_that_fit_are_linked(pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed(pack)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert peer_pack.install(within(tmp_path)) == {"gsplat": {"status": "ok", "seconds": 0.0}}
    # Once more, as in a second run.
    peer_pack.install(within(tmp_path))
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
def test_peers_that_do_not_fit_are_not_here(pack: Path, tmp_path: Path, changes: Any, why: str) -> None:
    packed(pack, **changes)
    assert why in peer_pack.install(within(tmp_path))["gsplat"]["status"]
    with pytest.raises(NotHere, match=f"No module named 'gsplat.*{why[:20]}"):
        peer_pack.load("gsplat.nothing_of_that_name")
    with pytest.raises(NotHere, match="not in the pack"):
        peer_pack.load("no_such_peer")


def test_pure_packages_fit_every_torch(pack: Path) -> None:
    assert peer_pack.misfit({**MANIFEST, "torch": None, "python": None}) == ""


def test_a_peer_is_built_from_its_source_if_there_is_time(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed(pack, arch=["80"])
    (pack / "peers" / "gsplat-1.5.3.tar.gz").touch()
    found = peer_pack.install(within(tmp_path, 60.0))["gsplat"]
    assert found["status"].startswith("not built: takes 300 s, and there are 30 s")
    monkeypatch.setattr(peer_pack, "python", lambda *of: ["sh", "-c", 'echo "no such kernel"; exit 3'])
    found = peer_pack.install(within(tmp_path, 1000.0))["gsplat"]
    assert found["status"] == "exit status 3"
    assert found["output"][-1] == "no such kernel"


def test_a_recipe_makes_packages_and_says_what_they_are_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compiler and git are replaced by programs that note what they are asked."""
    source = tmp_path / "sources" / "small"
    (source / "small").mkdir(parents=True)
    (source / "small" / "__init__.py").touch()
    files = [[source / "a.cpp"], [source / "b" / "a.cpp"], [source / "k.cu", source / "m.cu"]]
    recipe = peer_recipes.Recipe(
        "small", "1", "https://nowhere", "abc", "MIT", ["small"],
        lambda *_: [peer_recipes.Extension("small/_C.so", files)],
        ("small/*.py",),
    )  # fmt: skip
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, script in {
        "git": "echo abc",
        "ninja": f"cp $2/build.ninja {tmp_path}; touch {tmp_path}/out/small/small/_C.so",
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    python = {"torch": "2.11.0+cu130", "python": "3.12", "include": ["/t/include"], "lib": ["/t/lib"], "site": "/t"}
    tools = peer_builds.Toolchain(python, Path("/cuda"), "90", 2, tmp_path / "objects")
    peer_builds.build(recipe, tools, tmp_path / "sources", tmp_path / "out" / "small")
    manifest = context.read_json(tmp_path / "out" / "small" / "peer.json")
    assert (manifest["torch"], manifest["arch"], manifest["commit"]) == ("2.11.0+cu130", ["90"], "abc")
    assert (tmp_path / "out" / "small" / "small" / "__init__.py").is_file()
    steps = (tmp_path / "build.ninja").read_text(encoding="utf-8")
    together = tmp_path / "objects" / "small" / "small._C.so" / "k.and_more.cu"
    assert f"build k.and_more.cu.o: nvcc {together}" in steps
    assert together.read_text(encoding="utf-8") == f'#include "{source}/k.cu"\n#include "{source}/m.cu"\n'
    assert f"build b.a.cpp.o: cxx {source}/b/a.cpp" in steps
    assert "code=sm_90" in steps
    assert "-DTORCH_EXTENSION_NAME=_C" in steps
    (folder / "git").write_text("#!/bin/sh\necho another\n", encoding="utf-8")
    with pytest.raises(ValueError, match="is at another, but the recipe was made for abc"):
        peer_builds.build(recipe, tools, tmp_path / "sources", tmp_path / "out" / "small")
