"""A hook of MkDocs: adds pages made from other files, redirects links to them, and inlines formulas and diagrams."""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

import contract
import reference
import sources
from latex2mathml.converter import convert
from links import is_external, redirected, targets
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from notebooks import notebook
from readme import Readme

_ROOT = Path(__file__).parents[2]
_README = Readme(_ROOT)
_TUTORIALS = "tutorials/"
_LAST = ("reference/", "source/")
# Of these pages in the results of a search, where a title counts 1000 times: nearly every word is in one there.
_BOOST = 0.001
_DIAGRAM = re.compile(r"^!\[[^\]]*\]\((?:\.\./)*(images/diagrams/\w+\.svg)\)$", re.MULTILINE)
_DARK = re.compile(r"@media \(prefers-color-scheme: dark\) \{ (.+?\}) \}")
_SLATE = r'[data-md-color-scheme="slate"] \1'
_FORMULA = re.compile(r"^\$\$\n(.+?)\n\$\$$", re.DOTALL | re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the README's sections, references, files outside docs/ that pages link to, and notebooks of tutorials."""
    made = {
        **_README.pages,
        **reference.pages(_ROOT),
        "reference/contract.md": contract.page(_ROOT),
        "examples.md": sources.examples(_ROOT),
    }
    written = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for name, text in [*written.items(), *made.items()]:
        for target in targets(text):
            # Pages that are made have links as from docs/.
            path = _outside(target, dirname(name) if name in written else "")
            if path and _page_of(path) == sources.page_name(path):
                made[sources.page_name(path)] = sources.page(_ROOT, path)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    for name, text in written.items():
        if name.startswith(_TUTORIALS):
            files.append(File.generated(config, _notebook_of(name), content=notebook(text)))
    files.append(File.generated(config, "LICENSE.txt", content=(_ROOT / "LICENSE").read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Redirects links to files outside docs/ to their pages; inlines diagrams, and formulas as MathML.

    The reference and sources come last in the results of searches.
    """
    folder = dirname(page.file.src_uri)

    def to(target: str) -> str:
        path = _outside(target, "" if page.file.generated_by else folder)
        return relpath(_page_of(path, target.partition("#")[2]), folder or ".") if path else target

    if page.file.src_uri.startswith(_LAST):
        page.meta["search"] = {"boost": _BOOST}
    if page.file.src_uri.startswith(_TUTORIALS):
        name = Path(_notebook_of(page.file.src_uri)).name
        markdown += f"\nThis page is also a [Jupyter notebook]({name}).\n"
    return _FORMULA.sub(_mathml, _DIAGRAM.sub(_svg, redirected(markdown, to)))


def _notebook_of(tutorial: str) -> str:
    return str(Path(tutorial).with_suffix(".ipynb"))


def _mathml(formula: re.Match[str]) -> str:
    """A formula between two lines of `$$`, in LaTeX, as a block of HTML."""
    return f'<div class="formula">{convert(formula[1], display="block")}</div>'


def _svg(diagram: re.Match[str]) -> str:
    """A diagram as a block of HTML, so that it follows the reader's choice of light and dark on this site."""
    text = (_ROOT / "docs" / diagram[1]).read_text(encoding="utf-8").rstrip()
    return f'<div class="drawing">{_DARK.sub(_SLATE, text)}</div>'


def _outside(target: str, folder: str) -> str:
    """The path from the repository's root of a link, in a page of this folder, out of docs/; empty: it stays there."""
    path = normpath(join(folder, target.partition("#")[0]))
    return "" if is_external(target) or not path.startswith("../") else path.removeprefix("../")


def _page_of(path: str, anchor: str = "") -> str:
    """The page, with its anchor, that stands for a file outside docs/."""
    if path == "README.md":
        return _README.page_of(anchor)
    if path == "LICENSE":
        return "LICENSE.txt"
    return "reference/contract.md" if path.startswith("protos/") else sources.page_name(path)
