"""Executes the steps of a Dockerfile in a folder with a bare Debian, without a container engine."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

# A separate mount namespace, so that mounts end with the process.
_OWN_MOUNTS = ("unshare", "--mount", "--propagation", "private")
_MOUNT = re.compile(r"--mount=(\S+)\s+")


@dataclass
class Step:
    instruction: str
    value: str


@dataclass
class Stage:
    """A build stage, from its FROM."""

    parent: str
    steps: list[Step] = field(default_factory=list)


def stages_of(path: Path) -> dict[str, Stage]:
    """The stages by their names, in order."""
    found: dict[str, Stage] = {}
    for step in DockerfileParser(str(path)).structure:
        if step["instruction"] == "FROM":
            parent, _, name = step["value"].partition(" AS ")
            found[name] = latest = Stage(parent)
        elif step["instruction"] != "COMMENT" and found:
            latest.steps.append(Step(step["instruction"], step["value"]))
    return found


def chain(stages: Mapping[str, Stage], target: str) -> list[Step]:
    """All steps of a target, those of the stages that it is based on first."""
    stage = stages[target]
    return [*(chain(stages, stage.parent) if stage.parent in stages else []), *stage.steps]


@dataclass
class Image:
    """A root file system, and the Dockerfile's settings for its process."""

    root: Path
    context: Path
    # Folders for `--mount=type=bind,from=STAGE`, by stage; `cache` is the folder for `--mount=type=cache`.
    stages: Mapping[str, Path]
    cache: Path
    # Files copied from the host, and folders of the host mounted at the same paths.
    files: Sequence[Path] = ()
    folders: Sequence[Path] = ()
    # Variables that container engines set by default.
    environment: dict[str, str] = field(
        default_factory=lambda: {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
    )
    arguments: dict[str, str] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    workdir: str = "/"
    entrypoint: list[str] = field(default_factory=list)
    health: list[str] = field(default_factory=list)

    def build(self, steps: Sequence[Step]) -> None:
        """Execute the steps; raises a RuntimeError with the output of one that fails."""
        for file in self.files:
            if file.exists():
                shutil.copy(file, self.root / file.relative_to("/"))
        for step in steps:
            getattr(self, f"_{step.instruction.lower()}")(step.value)

    def command(self, *arguments: str, read_only: bool = True, binds: Mapping[str, Path] | None = None) -> list[str]:
        """The command that runs a program in the image as its user, with the mounts of a container."""
        root, lines = shlex.quote(str(self.root)), ['mount --bind "$ROOT" "$ROOT"', 'mount -t proc proc "$ROOT/proc"']
        for inside, outside in (binds or {}).items():
            lines.append(f'mkdir -p "$ROOT{inside}" && mount --bind {shlex.quote(str(outside))} "$ROOT{inside}"')
        if read_only:
            lines += ['mount -o remount,bind,ro "$ROOT"', 'mount -t tmpfs -o mode=1777 tmpfs "$ROOT/tmp"']
        entry = f'exec chroot --userspec={self.user} --groups= "$ROOT" "$@"'
        script = f"set -e; ROOT={root}; {'; '.join(lines)}; {entry}"
        variables = [f"{name}={value}" for name, value in self.environment.items()]
        return [*_OWN_MOUNTS, "sh", "-c", script, "sh", "env", "-i", *variables, *arguments]

    def _run(self, value: str) -> None:
        binds = {str(folder): folder for folder in self.folders}
        while match := _MOUNT.match(value):
            options = dict(option.partition("=")[::2] for option in match[1].split(","))
            binds[options["target"]] = self.cache if options["type"] == "cache" else self.stages[options["from"]]
            value = value[match.end() :]
        exports = [f"{name}={text}" for name, text in self.arguments.items()]
        shell = ["env", *exports, "sh", "-c", f"cd {shlex.quote(self.workdir)} && {value}"]
        done = subprocess.run(
            self.command(*shell, read_only=False, binds=binds), capture_output=True, text=True, timeout=900
        )
        if done.returncode != 0:
            raise RuntimeError(f"RUN {value}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")

    def _copy(self, value: str) -> None:
        *sources, target = value.split()
        place = self.root / (Path(self.workdir) / target).relative_to("/")
        for source in sources:
            into = place / Path(source).name if target.endswith("/") else place
            into.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (self.context / source).is_dir() else shutil.copy)(self.context / source, into)

    def _env(self, value: str) -> None:
        self.environment.update(self._pairs(value))

    def _label(self, value: str) -> None:
        self.labels.update(self._pairs(value))

    def _arg(self, value: str) -> None:
        name, _, default = value.partition("=")
        self.arguments.setdefault(name, default)

    def _user(self, value: str) -> None:
        self.user = value

    def _workdir(self, value: str) -> None:
        self.workdir = value
        (self.root / value.lstrip("/")).mkdir(parents=True, exist_ok=True)

    def _expose(self, value: str) -> None:
        """Ports are those of this machine."""

    def _entrypoint(self, value: str) -> None:
        self.entrypoint = json.loads(value)

    def _healthcheck(self, value: str) -> None:
        self.health = json.loads(value.partition("CMD ")[2])

    def _pairs(self, value: str) -> dict[str, str]:
        pairs = dict(part.partition("=")[::2] for part in shlex.split(value))
        known = {**self.arguments, **self.environment}
        return {name: re.sub(r"\$\{(\w+)\}", lambda found: known[found[1]], text) for name, text in pairs.items()}
