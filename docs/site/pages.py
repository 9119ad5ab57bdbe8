"""A hook of MkDocs: adds the pages that are made from other files, and leads links out of docs/ to them."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import normpath, relpath

import contract
import reference
import sources
from latex2mathml.converter import convert
from links import is_external, redirected, targets
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from readme import Readme

_ROOT = Path(__file__).parents[2]
_README = Readme(_ROOT)
_FORMULA = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README's sections, the references, and each file outside docs/ that a page links to."""
    made = {
        **_README.pages,
        **reference.pages(_ROOT),
        "reference/contract.md": contract.page(_ROOT),
        "examples.md": sources.examples(_ROOT),
    }
    written = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for text in [*written.values(), *made.values()]:
        for target in targets(text):
            path = _outside(target)
            if path and _page_of(path) == sources.page_name(path):
                made[sources.page_name(path)] = sources.page(_ROOT, path)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    files.append(File.generated(config, "LICENSE.txt", content=(_ROOT / "LICENSE").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Leads links to files outside docs/ to the pages that show them, and sets formulas in MathML, without scripts."""
    folder = str(Path(page.file.src_uri).parent)

    def to(target: str) -> str:
        path = _outside(target)
        return relpath(_page_of(path, target.partition("#")[2]), folder) if path else target

    return _FORMULA.sub(_mathml, redirected(markdown, to))


def _mathml(formula: re.Match[str]) -> str:
    """A formula between two lines of `$$`, in LaTeX, as a block of HTML."""
    return f'<div class="formula">{convert(formula[1], display="block")}</div>'


def _outside(target: str) -> str:
    """The path from the repository's root of a link out of docs/; empty: it stays there."""
    path = normpath(target.partition("#")[0])
    return "" if is_external(target) or not path.startswith("../") else path.removeprefix("../")


def _page_of(path: str, anchor: str = "") -> str:
    """The page, with its anchor, that stands for a file outside docs/."""
    if path == "README.md":
        return _README.page_of(anchor)
    if path == "LICENSE":
        return "LICENSE.txt"
    return "reference/contract.md" if path.startswith("protos/") else sources.page_name(path)
