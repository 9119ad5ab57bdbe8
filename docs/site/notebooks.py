"""Makes a Jupyter notebook of a tutorial: its Python blocks become cells of code, all else cells of text."""

from __future__ import annotations

import re

import nbformat
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

_CODE = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
_PICTURE = re.compile(r"^!\[.*\n", re.MULTILINE)
_RELATIVE = re.compile(r"\[([^\]]+)\]\((?!https?:)[^)]+\)")


def notebook(page: str) -> str:
    """The notebook as JSON. Pictures and relative links are left out: a file that was downloaded has neither."""
    text = _RELATIVE.sub(r"\1", _PICTURE.sub("", page))
    cells = []
    # What the pattern captures, the code, is every second part.
    for number, part in enumerate(_CODE.split(text)):
        if part.strip():
            new = new_code_cell if number % 2 else new_markdown_cell
            cells.append(new(part.strip(), id=f"cell-{number}"))
    made = new_notebook(cells=cells)
    made.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.validate(made)
    return nbformat.writes(made) + "\n"
