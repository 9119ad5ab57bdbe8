"""The README as pages of the site: each section stands in one place, and links to it are led there."""

from __future__ import annotations

import re
from pathlib import Path

from links import is_external, redirected

# Where sections go; those that are not named follow the quick start. What has a document of its own is not repeated.
_PAGES = {
    "Speed": "performance.md",
    "Documents": "index.md",
    "Licence and credit": "credit.md",
}
_REST = "quick_start.md"
_TITLES = {"quick_start.md": "First steps", "credit.md": "Licence and credit"}


class Readme:
    """README.md, taken apart.

    Attributes:
        pages: Markdown of each page by its name, with links as those of a file in docs/.
    """

    def __init__(self, root: Path) -> None:
        self._page_of_anchor: dict[str, str] = {}
        self.pages = {name: f"# {title}\n\n" for name, title in _TITLES.items()}
        _, *sections = re.split(r"^## (?=\S)", (root / "README.md").read_text(encoding="utf-8"), flags=re.M)
        for section in sections:
            self._place(section)
        self.pages = {name: redirected(text, self._from_docs) for name, text in self.pages.items()}

    def page_of(self, anchor: str) -> str:
        """Where a link to README.md#anchor leads.

        Args:
            anchor: of a heading; empty: of the README as a whole.
        """
        page = self._page_of_anchor.get(anchor, _REST)
        return f"{page}#{anchor}" if anchor and page in _TITLES else page

    def _place(self, section: str) -> None:
        title, _, text = section.partition("\n")
        page = _PAGES.get(title.strip(), _REST)
        for heading in (title, *re.findall(r"^#{3,} (.+)$", text, re.M)):
            self._page_of_anchor[_anchor(heading)] = page
        if page in self.pages:
            heading = "" if title == _TITLES[page] else f"## {title}\n"
            self.pages[page] += heading + (text if heading else re.sub(r"^#(?=##)", "", text, flags=re.M)) + "\n"

    def _from_docs(self, target: str) -> str:
        if is_external(target):
            return target
        if target.startswith("#"):
            return self.page_of(target[1:])
        return target.removeprefix("docs/") if target.startswith("docs/") else f"../{target}"


def _anchor(heading: str) -> str:
    return re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
