"""Files of the repository that documents link to, as pages: examples, and how things are deployed."""

from __future__ import annotations

import ast
from pathlib import Path

_LANGUAGES = {
    ".py": "python",
    ".proto": "protobuf",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".toml": "toml",
    ".json": "json",
    ".sh": "sh",
    ".cpp": "cpp",
    ".cu": "cpp",
    ".h": "cpp",
}


def page_name(path: str) -> str:
    """The page that shows a file or a folder.

    Args:
        path: from the repository's root.
    """
    return f"source/{path.rstrip('/')}.md"


def page(root: Path, path: str) -> str:
    """Markdown of a file with its text, or of a folder with its files.

    Args:
        root: of the repository.
        path: from there.

    Raises:
        FileNotFoundError: there is no such file or folder.
    """
    title = f"# {path.rstrip('/')}\n\n"
    if (root / path).is_dir():
        names = sorted(entry.name + "/" * entry.is_dir() for entry in (root / path).iterdir())
        return title + "\n".join(f"- `{name}`" for name in names if not name.startswith((".", "__pycache__"))) + "\n"
    text = (root / path).read_text(encoding="utf-8").rstrip()
    return f"{title}````{_LANGUAGES.get(Path(path).suffix, '')}\n{text}\n````\n"


def examples(root: Path) -> str:
    """The page that lists the examples with the first paragraph of what they say of themselves."""
    lines = ["# Examples", "", "Each is run by the tests. Those that are programs say by `--help` what they take.", ""]
    for path in sorted((root / "examples").glob("*.py")):
        said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        lines.append(f"- [`{path.name}`](../examples/{path.name}): {said.split(chr(10) * 2)[0]}")
    return "\n".join(lines) + "\n"
