"""The site in a real browser, opened from files: search, formulas, diagrams, and pages that fit their window."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from support.chromium import chromium

# The first test builds the site, which takes minutes beside other work.
pytestmark = pytest.mark.timeout(1200)
WAIT_S = 150
ROOT = Path(__file__).parents[3]
WINDOW = {"width": 1400, "height": 900}
PAGES = (
    *("index", "spheres", "gaussians", "meshes", "training", "gallery", "command_line", "which_call"),
    *("tutorials/fit_an_image", "operations", "operations/monitoring", "reference/contract"),
)

# Whether all texts of a drawing lie within it and are at least 8 pixels high.
INSIDE = """svg => {
  const frame = svg.getBoundingClientRect();
  return [...svg.querySelectorAll("text")].filter(e => e.textContent).every(e => {
    const box = e.getBoundingClientRect();
    return box.left >= frame.left && box.right <= frame.right && box.height >= 8;
  });
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built site."""
    if not (ROOT / "build" / "typed").is_dir():
        subprocess.run(["make", "typed"], cwd=ROOT, check=True, capture_output=True)
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-d", str(folder)], cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    """One page of a headless Chromium for all tests: each new one would compile the scripts of the site anew."""
    with chromium() as browser:
        page = browser.new_page(viewport=WINDOW)
        # The index of a search is read before the first key is taken.
        page.set_default_timeout(WAIT_S * 1000)
        yield page


@pytest.mark.parametrize("name", PAGES)
def test_pages_fit_their_window(site: Path, page: Any, name: str) -> None:
    page.goto((site / f"{name}.html").as_uri())
    for width in (1400, 390):
        page.set_viewport_size({"width": width, "height": 900})
        # Bars take a moment to move to their new places.
        page.wait_for_function("width => document.documentElement.scrollWidth <= width", arg=width)
        # Code that does not fit continues on the next line, instead of being cut.
        cut = "[...document.querySelectorAll('pre > code')].filter(e => e.scrollWidth > e.clientWidth).length"
        assert page.evaluate(cut) == 0


def test_search_works_from_files(site: Path, page: Any) -> None:
    page.set_viewport_size(WINDOW)
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("requestfailed", lambda request: complaints.append(request.url))
    # Links of a page in a folder begin elsewhere.
    for name in ("index", "operations/memory"):
        page.goto((site / f"{name}.html").as_uri())
        # Typed key by key, since the page searches when a key comes up; filling the field at once presses none.
        page.locator("input.md-search__input").press_sequentially("lame duck")
        first = page.locator(".md-search-result__link").first
        first.wait_for()
        assert any(
            "operations" in link
            for link in page.locator(".md-search-result__link").evaluate_all("all => all.map(e => e.href)")
        )
        assert all(
            Path(urlsplit(it).path).is_file() for it in [first.get_attribute("href") or ""] if it.startswith("file:")
        )
    assert not complaints


def well_found(links: list[str], expected: str) -> bool:
    """Whether the expected page is among the links, and none leads to the reference."""
    apart = [link for link in links if "/reference/" in link or "/source/" in link]
    return any(expected in link for link in links) and not apart


def test_searches_find_explanations_before_the_reference(site: Path, page: Any) -> None:
    page.set_viewport_size(WINDOW)
    for words, expected in (("max-pixels", "operations/options"), ("lidar", "sensors.html")):
        page.goto((site / "index.html").as_uri())
        page.locator("input.md-search__input").press_sequentially(words)
        pages = page.locator(".md-search-result__item > a.md-search-result__link:first-of-type")
        pages.first.wait_for()
        # Each letter starts a new search, and the results of the last one arrive some time later.
        found = "all => all.slice(0, 5).map(e => e.href)"
        deadline = time.monotonic() + WAIT_S
        while not well_found(first := pages.evaluate_all(found), expected):
            assert time.monotonic() < deadline, (words, first)
            page.wait_for_timeout(50)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_diagrams_have_the_colours_of_their_page(site: Path, page: Any, scheme: str) -> None:
    # A page remembers its scheme.
    page = page.context.browser.new_page(color_scheme=scheme)
    page.set_default_timeout(WAIT_S * 1000)
    for name in ("operations", "operations/shared_memory", "training"):
        page.goto((site / f"{name}.html").as_uri())
        shown = page.locator("svg.diagram")
        assert shown.count() == 1, name
        ink = shown.locator("text").first.evaluate("e => getComputedStyle(e).fill")
        brightness = sum(map(int, re.findall(r"\d+", ink)[:3])) / 3
        assert brightness > 180 if scheme == "dark" else brightness < 80, ink
        # No text leaves its drawing, and small texts can be read.
        for width in (1400, 390):
            page.set_viewport_size({"width": width, "height": 900})
            assert shown.evaluate(INSIDE), name
    page.close()


def test_formulas_are_set(site: Path, page: Any) -> None:
    page.set_viewport_size(WINDOW)
    for name in ("spheres", "gaussians", "meshes"):
        page.goto((site / f"{name}.html").as_uri())
        source = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
        formulas = page.locator(".formula math")
        assert formulas.count() == source.count("\n$$\n") / 2 > 0
        texts = formulas.all_text_contents()
        # The converter leaves commands that it does not know as they are, and joins rows to one line.
        assert not [text for text in texts if "\\" in text or "&" in text or "$" in text], name
        heights = formulas.evaluate_all("all => all.map(e => e.getBoundingClientRect().height)")
        assert min(heights) > 20, name
        assert not page.evaluate("[...document.querySelectorAll('.formula')].some(e => e.scrollWidth > e.clientWidth)")
