"""The tutorials reach their results, and their notebooks hold the same code."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from PIL import Image

from support.files.documents import ROOT, code_of, run_all_of, run_code_of
from support.workers.worker import WorkerProcess, worker

# The commands of the environment in which the tests run.
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.fixture(autouse=True)
def in_a_folder(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The reader's folder, with a worker at the default address."""
    pytest.importorskip("torch")
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def losses(names: Mapping[str, object]) -> tuple[float, float]:
    found = names["losses"]
    assert isinstance(found, list)
    return found[0], found[-1]


def test_a_first_picture(in_a_folder: Path) -> None:
    names = run_code_of(ROOT / "docs" / "tutorials" / "first_picture.md")
    picture, depth = (np.asarray(Image.open(in_a_folder / name), float) for name in ("first.png", "depth.png"))
    assert picture.shape == (480, 640, 3) and picture.std() > 30
    # Close surfaces are light.
    assert depth[400, 320] > depth[240, 320] > depth[10, 10]
    # The table is in the picture as a whole.
    covered: Any = names["covered"]
    assert covered.mean() > 0.1
    assert not any(edge.any() for edge in (covered[0], covered[-1], covered[:, 0], covered[:, -1]))


def test_no_document_overwrites_the_picture_of_another() -> None:
    """Readers follow one page after the other in the same folder, and compare what they got."""
    pages = [ROOT / "README.md", *TUTORIALS, *(ROOT / "docs" / f"{page}.md" for page in ("surfels", "training"))]
    writing = re.compile(r"""(?:-o |write_\w+\(")([\w/]+\.(?:png|jpg))""")
    lines: dict[str, set[str]] = {}
    for path in pages:
        for line in path.read_text(encoding="utf-8").splitlines():
            for name in writing.findall(line):
                lines.setdefault(name, set()).add(line.partition("#")[0].strip())
    assert {"vase.png", "first.png", "fitted.png"} <= set(lines)
    assert not {name: found for name, found in lines.items() if len(found) > 1}


def test_a_picture_is_fitted() -> None:
    first, last = losses(run_code_of(ROOT / "docs" / "tutorials" / "fit_an_image.md"))
    assert first > 0.15
    assert last < 0.02


def test_a_camera_is_refined() -> None:
    names = run_code_of(ROOT / "docs" / "tutorials" / "refine_a_camera.md")
    assert names["before"] > 0.3  # type: ignore[operator]
    assert names["after"] < 0.02  # type: ignore[operator]


def test_a_loop_of_gsplat_trains() -> None:
    first, last = losses(run_code_of(ROOT / "docs" / "tutorials" / "gsplat_loop.md"))
    assert first > 0.08
    assert last < 0.015


def test_a_capture_is_fitted(in_a_folder: Path) -> None:
    page = (ROOT / "docs" / "tutorials" / "fit_a_capture.md").read_text(encoding="utf-8")
    # Pictures with a ninth of the pixels take the sample's tracer a ninth of the time.
    page, count = re.subn("--size 240x180", "--size 80x60", page)
    assert count == 1
    names = run_all_of(written(in_a_folder / "page.md", page), ENVIRONMENT)
    assert names["psnr"] > 22  # type: ignore[operator]


def test_a_motion_is_planned(in_a_folder: Path) -> None:
    pytest.importorskip("trimesh")
    names = run_code_of(ROOT / "docs" / "tutorials" / "plan_around_a_scan.md")
    assert names["before"].min() < -0.03 and names["after"].min() > 0.01  # type: ignore[attr-defined]
    assert (in_a_folder / "clearance.png").exists()


def test_jax_fits() -> None:
    pytest.importorskip("jax")
    first, last = losses(run_code_of(ROOT / "docs" / "tutorials" / "train_from_jax.md"))
    assert first > 0.1
    assert last < 0.015


def test_tenants_share_a_worker(monkeypatch: pytest.MonkeyPatch, in_a_folder: Path, capfd: Any) -> None:
    page = (ROOT / "docs" / "tutorials" / "a_worker_for_a_team.md").read_text(encoding="utf-8")
    before, serve, after = re.split(r"^(lumigrad serve .*)$", page, maxsplit=1, flags=re.M)
    run_all_of(written(in_a_folder / "before.md", before + "```"), ENVIRONMENT)
    trusted = grpc.ssl_channel_credentials((in_a_folder / "worker.crt").read_bytes())
    # The certificate is for this machine.
    with worker(*serve.split()[2:], "--host", "127.0.0.1", credentials=trusted) as started:
        monkeypatch.setenv("LUMIGRAD_TARGET", f"localhost:{started.port}")
        after = after.replace("50051", str(started.port)).replace("9464", str(started.metrics_port))
        run_all_of(written(in_a_folder / "after.md", "```" + after), ENVIRONMENT)
    shown = capfd.readouterr().out
    assert "(48, 64, 3)" in shown and re.search(r"^1 0$", shown, re.M)
    assert "robots: " in shown and "a stranger: " in shown
    assert 'code="UNAUTHENTICATED"' in shown
    assert 'lumigrad_tenant_calls_total{tenant="robots"} 2.0' in shown


def written(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=lambda path: path.stem)
def test_notebooks_have_the_code_of_their_pages(tutorial: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nbformat")
    monkeypatch.syspath_prepend(ROOT / "docs" / "site")
    monkeypatch.delitem(sys.modules, "notebooks", raising=False)
    from notebooks import notebook

    cells = json.loads(notebook(tutorial.read_text(encoding="utf-8")))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert code == [block.strip() for block in code_of(tutorial)]
    assert cells[0]["source"][0].startswith("# ")
