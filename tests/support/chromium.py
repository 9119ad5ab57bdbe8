"""The system's headless Chromium, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    # WebGL without a graphics card.
    "--enable-unsafe-swiftshader",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Drawing sixty frames a second without a graphics card would take more than one processor.
_FEW_FRAMES = """
window.requestAnimationFrame = draw => setTimeout(() => draw(performance.now()), 60);
window.cancelAnimationFrame = clearTimeout;
"""
# How long a busy machine may take to start the browser, or to do something in it.
_PATIENCE_MS = 150_000
_CANVAS_ALONE = "body * { visibility: hidden !important } canvas { visibility: visible !important }"


@contextmanager
def chromium() -> Iterator[Any]:
    """Playwright's handle of it. Skips the test where there is none, but not in CI."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        path, reason = None, "no playwright: pip install playwright"
    else:
        reason = f"no {NAMES[0]}: apt install chromium"
    if path is None:
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(OPTIONS), timeout=_PATIENCE_MS)
        try:
            yield browser
        finally:
            browser.close()


def opened_page(browser: Any, url: str, width: int, height: int) -> Any:
    """Opens a viewer's page, with one canvas pixel per page pixel, and notices that ignore the mouse."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(_PATIENCE_MS)
    page.add_init_script(_FEW_FRAMES)
    # A fixed ratio, since slow browsers would shrink their canvas.
    page.goto(f"{url}/?fixedDpr=1")
    page.add_style_tag(content=".mantine-Notifications-root, .mantine-Notifications-root * { pointer-events: none }")
    return page


def canvas_pixels(page: Any, path: Path) -> Any:
    """[H, W, 3] pixels that the viewer drew, also written to a file.

    Panels and notices are hidden: how much of the canvas they cover depends on the machine's fonts.
    """
    import numpy as np
    from PIL import Image

    page.locator("canvas[data-engine]").screenshot(path=str(path), style=_CANVAS_ALONE)
    return np.asarray(Image.open(path).convert("RGB"))
