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
    """The page that lists the examples, programs first, with the first paragraph of what they say of themselves."""
    programs, modules = [], []
    for path in sorted((root / "examples").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        said = (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[0]
        (programs if "__main__" in text else modules).append(f"- [`{path.name}`](../examples/{path.name}): {said}")
    return "\n".join(
        [
            "# Examples\n",
            "Programs, each of which is run by the tests, and says by `--help` what it takes:\n",
            *programs,
            "\nWhat they share:\n",
            *modules,
        ]
    )
