"""The folder from which `lumigrad` is imported on a machine where it cannot be installed."""

from __future__ import annotations

import hashlib
import shutil
import sysconfig
import zipfile
from collections.abc import Collection, Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from tests.gpu.context import PACK, ROOT, SITE

_SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")
_INSTALLED = ".venv/lib/python*/site-packages/lumigrad"
# The packages of generated messages, side by side in `lumigrad`.
MESSAGES = ("v1", "drive/v1")
# Packages that are only unpacked if the installed ones are missing or older than the project's metadata allows.
_PERHAPS = ("grpcio", "protobuf")


def assemble(native: Path) -> dict[str, str]:
    """Makes SITE anew: links to the packages and to the native module, and the pack's messages and packages.

    Returns its contents by name.
    """
    shutil.rmtree(SITE, ignore_errors=True)
    kernels = SITE / "lumigrad" / "kernels"
    kernels.mkdir(parents=True)
    for name in ("protos", "server", "client"):
        (SITE / "lumigrad" / name).symlink_to(ROOT / name)
    for path in (ROOT / "kernels").iterdir():
        (kernels / path.name).symlink_to(path)
    (kernels / f"_native{_SUFFIX}").symlink_to(native)
    _name_the_tests()
    messages = next(_messages(), None)
    if messages is not None:
        for package in MESSAGES:
            link = SITE / "lumigrad" / package
            link.parent.mkdir(exist_ok=True)
            link.symlink_to(messages / package)
    _describe()
    needless = {name for name in _PERHAPS if _is_new_enough(name)}
    wheels = [_unpack(wheel) for wheel in sorted((PACK / "wheels").glob("*.whl")) if _fits(wheel, needless)]
    return {
        "native": str(native),
        "messages": str(messages or "none that fit these protos: run make gpu-pack"),
        "wheels": ", ".join(wheels) or "none",
    }


def installed_native() -> Path:
    """The CPU module that `make setup` installed, for a dry run."""
    found = sorted(ROOT.glob(f"{_INSTALLED}/kernels/_native{_SUFFIX}"))
    if not found:
        raise FileNotFoundError(f"no _native{_SUFFIX} in .venv; run `make setup`, with this version of Python")
    return found[0]


def _name_the_tests() -> None:
    """Adds an __init__.py to `tests`, without which an installed package's folder `tests` could precede ours."""
    (SITE / "tests").mkdir()
    (SITE / "tests" / "__init__.py").write_text(f"__path__ = [{str(ROOT / 'tests')!r}]\n", encoding="utf-8")


def protos_digest() -> str:
    """A digest of the messages' sources: messages of other protos would break the server."""
    protos = sorted((ROOT / "protos" / "lumigrad").rglob("*.proto"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in protos)).hexdigest()


def _messages() -> Iterator[Path]:
    """Folders that contain all of MESSAGES, the best first."""
    digest = PACK / "protos.sha256"
    if digest.is_file() and digest.read_text(encoding="utf-8") == protos_digest():
        yield PACK / "messages"
    yield from (path for path in sorted(ROOT.glob(_INSTALLED)) if all((path / each).is_dir() for each in MESSAGES))


def _describe() -> None:
    """Writes metadata in which the command line finds its subcommands, and programs find the version."""
    project = _project()
    folder = SITE / f"lumigrad-{project['version']}.dist-info"
    folder.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: lumigrad\nVersion: {project['version']}\n"
    (folder / "METADATA").write_text(metadata, encoding="utf-8")
    lines = []
    for group, entries in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {target}" for name, target in entries.items())]
    (folder / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _project() -> dict[str, Any]:
    import tomllib

    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return found


def _is_new_enough(name: str) -> bool:
    """Whether a package is installed in a version that the project's metadata allows."""
    from packaging.requirements import Requirement

    wanted = {each.name: each.specifier for each in map(Requirement, _project()["dependencies"])}
    try:
        return wanted[name].contains(version(name), prereleases=True)
    except PackageNotFoundError:
        return False


def _fits(wheel: Path, needless: Collection[str]) -> bool:
    """Whether a wheel is needed and fits this Python: pure, or compiled for its version."""
    abi = wheel.stem.split("-")[-2]
    fits = abi in ("none", "abi3") or f"-{abi.removeprefix('cp')}-" in str(_SUFFIX)
    return fits and wheel.name.split("-")[0] not in needless


def _unpack(wheel: Path) -> str:
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(SITE)
    return "-".join(wheel.name.split("-")[:2])
