"""Files of a data set, found by the names that other machines wrote into it."""

from __future__ import annotations

import errno
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

# Suffixes tried for photographs, which are often converted; the last ones are found so that an error can name them.
_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".heic", ".heif")


class Files:
    """The files in a folder and below.

    Names may have the separators of Windows, accents in another form of Unicode than the file system's, and letters in
    another case if no two files differ in that alone.

    Attributes:
        folder: the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._listings: dict[Path, dict[str, list[str]]] = {}

    def find(self, name: str) -> Path | None:
        """Finds a file by its path from the folder; None if there is none."""
        return self._exact(name) or self._walk(_parts(name), _written)

    def picture(self, name: str, *, moved: bool = False) -> Path | None:
        """Finds a picture by its path from the folder, also without its suffix or with another; None if there is none.

        Args:
            name: the path.
            moved: whether the path starts from another folder: as few of its first parts as possible are dropped, so
                that photographs of several cameras are not mixed up.
        """
        if not moved:
            return self._exact(name) or self._walk(_parts(name), _alternatives)
        parts = _below(_parts(name))
        tails = (self._walk(parts[start:], _alternatives) for start in range(len(parts)))
        return next((found for found in tails if found is not None), None)

    def place(self, name: str) -> Path:
        """Returns the path of a file that does not exist, for messages."""
        return self.folder.joinpath(*_parts(name))

    def _exact(self, name: str) -> Path | None:
        """Returns the file of exactly this name, which may contain a backslash after careless unpacking."""
        return self.folder / name if _is_file(self.folder / name) else None

    def _walk(self, parts: Sequence[str], names_of: Callable[[str], list[str]]) -> Path | None:
        """Returns the file at a path whose last part may be one of several names."""
        place = self.folder
        if not parts:
            return None
        for part in parts[:-1]:
            if (place / part).is_dir():
                place = place / part
            elif (listed := self._listed(place, part)) is not None:
                place = place / listed
            else:
                return None
        return next((found for name in names_of(parts[-1]) if (found := self._file(place, name))), None)

    def _file(self, folder: Path, name: str) -> Path | None:
        if _is_file(folder / name):
            return folder / name
        listed = self._listed(folder, name)
        return folder / listed if listed is not None and (folder / listed).is_file() else None

    def _listed(self, folder: Path, name: str) -> str | None:
        """Returns the only name in a folder that differs just in the form of accents or in case, else None."""
        if folder not in self._listings:
            keys: dict[str, list[str]] = {}
            for path in folder.iterdir() if folder.is_dir() else ():
                keys.setdefault(_key(path.name), []).append(path.name)
            self._listings[folder] = keys
        alike = self._listings[folder].get(_key(name), [])
        same = [each for each in alike if _composed(each) == _composed(name)] or alike
        return same[0] if len(same) == 1 else None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            return False
        raise


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(portable(name)).parts


def portable(name: str) -> str:
    """Returns a path with the separators of this machine, whatever machine wrote it."""
    return name.replace("\\", "/")


def _below(parts: Sequence[str]) -> Sequence[str]:
    """Returns the parts of a path after its root, its drive, or its last "..", whatever machine wrote it."""
    ups = [index for index, part in enumerate(parts) if part in ("/", "//", "..") or part.endswith(":")]
    return parts[ups[-1] + 1 :] if ups else parts


def _composed(name: str) -> str:
    return unicodedata.normalize("NFC", name)


def _key(name: str) -> str:
    return _composed(name).casefold()


def _written(name: str) -> list[str]:
    return [name]


def _alternatives(name: str) -> list[str]:
    path = PurePosixPath(name)
    others = [name + suffix for suffix in _SUFFIXES]
    if path.suffix.lower() in _SUFFIXES:
        others += [path.stem + suffix for suffix in _SUFFIXES]
    return [name, *others]


def unique_names(files: Sequence[str]) -> list[str]:
    """Returns names of views from their photographs' names, without folder and suffix if these stay unique."""
    paths = [PurePosixPath(portable(file)) for file in files]
    for named in ([path.stem for path in paths], [str(path.with_suffix("")) for path in paths]):
        if len(set(named)) == len(named):
            return named
    return [f"{index}_{path.stem}" for index, path in enumerate(paths)]
