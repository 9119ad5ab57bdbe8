"""Parses README and the pages of docs: code blocks, links, and the anchors that GitHub generates for headings."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Marks a block that is not run, because tests cannot provide what it needs; it still has to compile.
FRAGMENT = "<!-- fragment -->\n"
_BLOCK = re.compile(rf"(?P<fragment>{FRAGMENT})?^```(?P<language>\S*)[^\n]*\n(?P<text>.*?)^```[ ]*$", re.M | re.S)


def name_of(document: Path) -> str:
    """The path from the repository's root, for the names of tests."""
    return document.relative_to(ROOT).as_posix()


def code_of(document: Path, *, fragments: bool = False) -> list[str]:
    """A document's Python blocks, without the lines that a porting guide replaces."""
    return [
        _after_porting(block["text"])
        for block in _BLOCK.finditer(document.read_text(encoding="utf-8"))
        if block["language"] == "python" and bool(block["fragment"]) == fragments
    ]


def run_code_of(document: Path) -> dict[str, object]:
    """Runs a document's Python blocks one after another; returns the names they leave."""
    names: dict[str, object] = {}
    exec("\n".join(code_of(document)), names)
    return names


def run_all_of(document: Path, environment: Mapping[str, str]) -> dict[str, object]:
    """Runs a document's shell and Python blocks in order; returns the names that the Python blocks leave."""
    names: dict[str, object] = {}
    for block in _BLOCK.finditer(document.read_text(encoding="utf-8")):
        if block["language"] == "sh":
            subprocess.run(["bash", "-euc", block["text"]], env={**os.environ, **environment}, check=True)
        elif block["language"] == "python":
            exec(block["text"], names)
    return names


def _after_porting(block: str) -> str:
    return block.partition("# after")[2] if block.startswith("# before") else block


def blocks_of(document: Path, language: str) -> list[str]:
    """The texts of a document's blocks in a language."""
    blocks = _BLOCK.finditer(document.read_text(encoding="utf-8"))
    return [block["text"] for block in blocks if block["language"] == language]


def languages_of(document: Path) -> set[str]:
    """The languages of all fenced blocks."""
    return {block["language"] for block in _BLOCK.finditer(document.read_text(encoding="utf-8"))}


def prose_of(document: Path) -> str:
    """A document without its fenced blocks."""
    return _BLOCK.sub("", document.read_text(encoding="utf-8"))


def links_of(document: Path) -> list[str]:
    """The targets of links and images."""
    return re.findall(r"\]\(([^()\s]+)\)", prose_of(document))


def anchors_of(document: Path) -> set[str]:
    """The anchors that GitHub generates for a document's headings."""
    anchors: set[str] = set()
    for heading in re.findall(r"^#{1,6} (.+?)\s*$", prose_of(document), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        plain = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        anchors.add(next(name for name in _numbered(plain) if name not in anchors))
    return anchors


def _numbered(name: str) -> Iterator[str]:
    yield name
    number = 0
    while True:
        number += 1
        yield f"{name}-{number}"


def commands_of(document: Path) -> list[str]:
    """The arguments of `lumigrad` in a document's commands, in blocks and in the text: "serve --port 0", …"""
    text = document.read_text(encoding="utf-8").replace("\\\n", " ")
    blocks = [block["text"] for block in _BLOCK.finditer(text) if block["language"] in {"sh", "bash", "console"}]
    lines = [line.partition(" #")[0] for block in blocks for line in block.splitlines()]
    spans = re.findall(r"`([^`\n]+)`", prose_of(document))
    typed = re.compile(r"^(?:\$ )?(?:[A-Z_]+=\S+ )*lumigrad ([a-z].*)$")
    return [found[1] for line in (*lines, *spans) if (found := typed.match(line.strip()))]
