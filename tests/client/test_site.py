"""The documentation's site in a real browser: formulas are set, and no page is wider than its window."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.chromium import chromium

ROOT = Path(__file__).parents[2]
PAGES = ("index", "spheres", "gaussians", "meshes", "gallery", "command_line", "which_call", "tutorials/fit_an_image")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    if not (ROOT / "build" / "typed").is_dir():
        subprocess.run(["make", "typed"], cwd=ROOT, check=True, capture_output=True)
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless Chromium."""
    with chromium() as found:
        yield found


@pytest.mark.parametrize("width", [1400, 390])
def test_pages_fit_their_window(site: Path, browser: Any, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    for name in PAGES:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
    page.close()


def test_formulas_are_set(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1400, "height": 900})
    for name in ("spheres", "gaussians", "meshes"):
        page.goto((site / f"{name}.html").as_uri())
        source = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        formulas = page.locator(".formula math")
        assert formulas.count() == source.count("\n$$\n") / 2 > 0
        texts = formulas.all_text_contents()
        # What the converter does not know stays as it is, and rows become one line.
        assert not [text for text in texts if "\\" in text or "&" in text or "$" in text], name
        heights = formulas.evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
        assert min(heights) > 20, name
        assert not page.evaluate("[...document.querySelectorAll('.formula')].some(e => e.scrollWidth > e.clientWidth)")
    page.close()
