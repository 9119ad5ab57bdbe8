"""README and docs/*.md are true: links lead somewhere, code runs, commands have the options that are named."""

from __future__ import annotations

import re
from functools import cache, partial
from importlib.metadata import entry_points
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from lumigrad.client.shell.catalog import GROUP
from support.files.documents import (
    DOCUMENTS,
    ROOT,
    anchors_of,
    code_of,
    commands_of,
    languages_of,
    links_of,
    name_of,
    prose_of,
    run_code_of,
)
from support.workers.forks import lumigrad
from support.workers.slow_render import wait_until
from support.workers.worker import WorkerProcess

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)


@every_document
def test_links_lead_to_files_and_headings_or_are_complete(document: Path):
    lost = []
    for link in links_of(document):
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            if parts.scheme != "https" or not re.fullmatch(r"[a-z0-9.-]+\.[a-z]{2,}", parts.netloc):
                lost.append(f"{link}: no complete address")
            continue
        path = (document.parent / parts.path).resolve() if parts.path else document
        if not path.exists() or not path.is_relative_to(ROOT):
            lost.append(f"{link}: no such file")
        elif parts.fragment and parts.fragment not in anchors_of(path):
            lost.append(f"{link}: no such heading")
    assert not lost


@every_document
def test_code_compiles(document: Path):
    assert "py" not in languages_of(document), "name it python, and mark what is not run with <!-- fragment -->"
    for block in (*code_of(document), *code_of(document, fragments=True)):
        compile(block, name_of(document), "exec")


@every_document
def test_code_is_run_by_a_test(document: Path):
    if not code_of(document):
        return
    place = " / ".join(f'"{part}"' for part in document.relative_to(ROOT).parts)
    tests = [path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")]
    is_run = re.compile(
        rf"run_(code_of|all_of|page)\(ROOT / {re.escape(place)}|\(ROOT / {re.escape(place)}\)\.read_text.*run_all_of",
        re.S,
    )
    assert any(is_run.search(text) for text in tests), "run it, or mark it with <!-- fragment -->"


def test_examples_are_run_by_a_test():
    """Examples that are programs are run; the others are their modules."""
    programs = {path.name for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text("utf-8")}
    tests = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    assert not {name for name in programs if f'"{name}"' not in tests}


@every_document
def test_tests_that_are_named_exist(document: Path):
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", document.read_text(encoding="utf-8"))
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file, _ in named if (ROOT / file).is_file()}
    missing = {
        (file, name)
        for file, name in named
        if file not in texts or (name and not re.search(rf"^(def {name}\(|{name} =)", texts[file], re.M))
    }
    assert not missing


def test_messages_of_the_page_on_troubles_are_in_the_source():
    """For each quoted message, one file has all of its fixed parts, which dots separate."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    told = [text for row in re.findall(r"^\| (`[^|]*`) \|", page, re.M) for text in re.findall(r"`([^`]+)`", row)]
    files = [path for room in ("client", "server", "kernels") for path in (ROOT / room).rglob("*.py")]
    # Joins strings that continue on the next line.
    sources = [re.sub(r'"\s*\n\s*f?"', "", path.read_text(encoding="utf-8")) for path in files]
    assert len(told) > 15
    lost = [text for text in told if not any(all(part in it for part in text.split(" … ")) for it in sources)]
    assert not lost


def test_what_tenants_can_count_on_is_tested():
    text = (ROOT / "docs" / "operations" / "security.md").read_text(encoding="utf-8")
    rows = text.partition("## What a tenant can count on\n")[2].partition("\n## ")[0].split("|---|---|\n")[1]
    promises = [line for line in rows.splitlines() if line.startswith("|")]
    assert len(promises) > 10
    assert not [line for line in promises if not re.search(r"`tests/[\w/]+\.py(::\w+)?`[^|]*\|$", line)]


@cache
def help_of(command: str) -> str:
    """The output of `lumigrad COMMAND --help`."""
    done = lumigrad(command, "--help")
    assert done.returncode == 0, f"lumigrad {command}: {done.stderr}"
    return done.stdout


def options_of(command: str) -> frozenset[str]:
    """The options of `lumigrad COMMAND`, by its help."""
    return frozenset(re.findall(r"(?<![\w-])-{1,2}[a-z][a-z-]*", help_of(command)))


@every_document
def test_commands_have_the_options_that_are_named(document: Path):
    unknown = []
    for line in commands_of(document):
        command, _, rest = line.partition(" ")
        named = set(re.findall(r"(?<!\S)-{1,2}[a-z][a-z-]*", rest))
        unknown += [f"{option} of lumigrad {line}" for option in sorted(named - options_of(command))]
    assert not unknown


COMMANDS = sorted(entry.name for entry in entry_points(group=GROUP))


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        *(f"docs/{it}.md" for it in ("command_line", "operations", "semantics", "training", "formats")),
        *(f"docs/operations/{it}.md" for it in ("limits", "memory", "monitoring", "options", "security")),
    ],
)
def test_options_in_the_text_exist(name: str):
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*[a-z]", prose_of(ROOT / name)))
    known = frozenset().union(*map(options_of, COMMANDS))
    assert named and not sorted(named - known - {"--help", "--no"})


def test_every_command_is_in_the_document_of_the_command_line():
    rows = re.findall(r"^\| `([a-z]+)` \|", (ROOT / "docs" / "command_line.md").read_text(encoding="utf-8"), re.M)
    assert sorted(rows) == COMMANDS


def test_the_code_about_training_runs(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    names = run_code_of(ROOT / "docs" / "training.md")
    assert names["step"].psnr > 25 and len(names["fitted"].means) == 500
    assert abs(names["lens"].fx - 95) < 0.1 and abs(names["lens"].radial[0] + 0.2) < 0.01
    assert np.isfinite(names["value"]) and names["value"] < 0.05
    assert sum(report.added for report in names["grown"]) > 0


def test_each_call_moves_the_bytes_that_its_page_gives(worker_process: WorkerProcess, monkeypatch: pytest.MonkeyPatch):
    """docs/which_call.md has S, the scene, and P, the picture, for each way."""
    monkeypatch.setenv("LUMIGRAD_TARGET", worker_process.target)
    names = run_code_of(ROOT / "docs" / "which_call.md")
    scene, picture = 1000 * 236, 400 * 300 * 12
    expected = {
        "render_inline": (scene, picture),
        "render_stored": (0, picture),
        "gradients_inline": (scene + picture, picture + scene),
        "gradients_stored": (picture, picture + scene),
        "pose_stored": (picture, picture),
        "camera_in_torch": (picture, picture),
        "opacities_in_torch": (picture + 4000, picture + 4000),
        # Six bytes for each pixel of colour, depth and alpha.
        "sensors": (0, 6 * (2 * 128 * 128 + 400 * 300)),
    }

    def moved(way: str) -> float:
        methods = [f"RenderService.{name}" for name in ("Render", "RenderBatch", "Backward")]
        return sum(worker_process.metric("lumigrad_payload_bytes_total", method=it, direction=way) for it in methods)

    received, sent = moved("received"), moved("sent")
    for name, (up, down) in expected.items():
        names[name]()
        received, sent = received + up, sent + down
        wait_until(partial(lambda least: moved("sent") >= least, sent), f"the bytes of {name}")
        # Each tensor begins at a multiple of 64 bytes; the gradients of a camera are four small tensors.
        assert 0 <= moved("received") - received < 512 and 0 <= moved("sent") - sent < 512, name
        received, sent = moved("received"), moved("sent")


def test_the_table_of_options_is_that_of_the_worker():
    """docs/operations/options.md has each option of `lumigrad serve`, with its default."""
    table = (ROOT / "docs" / "operations" / "options.md").read_text(encoding="utf-8").partition("\n## Options\n")[2]
    rows = re.findall(r"^\| (`--[^|]+) \|([^|]*)\|", table.partition("\n## ")[0], re.M)
    told = {}
    for names, defaults in rows:
        options = re.findall(r"`(--[a-z-]+)`", names)
        values = [value.strip("` ") for value in defaults.split(",")]
        told |= dict(zip(options, values if len(values) == len(options) else [""] * len(options), strict=True))
    assert told == defaults_of_the_worker()


def test_the_limits_of_the_semantics_page_are_those_of_the_worker():
    limits = (ROOT / "docs" / "semantics.md").read_text(encoding="utf-8").partition("\n## Limits\n")[2]
    known = defaults_of_the_worker()
    rows = re.findall(r"^\| [^|]+ \| ([^|]+) \| (`--[^|]+) \|$", limits, re.M)
    assert len(rows) > 10
    for defaults, names in rows:
        for default, name in zip(defaults.split(", "), names.split(", "), strict=True):
            number, _, unit = default.replace(",", "").partition(" ")
            assert int(known[name.strip("`")]) == int(number) * (1024 if unit == "GiB" else 1), name


def test_the_times_of_the_readme_are_those_of_the_tables():
    """Benchmarks write their tables into docs/performance.md; the README repeats some of the rows."""
    speed = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## Speed\n")[2].partition("\n## ")[0]
    shown = [re.findall(r"\d[\d,.]* M|\d[\d,.]* / [\d,.]+|[\d.,]+x(?: / [\d.,]+x)?", row) for row in rows_of(speed)[1:]]
    # Drops the heading of the second table.
    shown = [figures for figures in shown if figures]
    tables = rows_of((ROOT / "docs" / "performance.md").read_text(encoding="utf-8"))
    assert len(shown) >= 7 and all(len(figures) >= 3 for figures in shown)
    assert not [figures for figures in shown if not any(all(it in row for it in figures) for row in tables)]


def rows_of(text: str) -> list[str]:
    """The rows of Markdown's tables, without the lines below their headings."""
    return [line for line in text.splitlines() if line.startswith("| ")]


def defaults_of_the_worker() -> dict[str, str]:
    """Each option of `lumigrad serve` with its default; empty if it has none."""
    defaults = {}
    for entry in re.split(r"\n  (?=--)", help_of("serve").partition("\noptions:\n")[2])[1:]:
        default = re.search(r"\(default:\s+([^)]*)\)", entry)
        value = default[1] if default else ""
        defaults[entry.split()[0]] = "" if value in {"none", "False"} else value.removesuffix(".0")
    return defaults


def test_each_picture_of_the_gallery_has_its_command():
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    pictures = re.findall(r"^!\[[^\]]+\]\((\S+)\)\n\n(?=```sh\n(?:lumigrad|python|make) )", page, re.M)
    assert len(set(pictures)) == page.count("![") >= 20


def test_pictures_are_small():
    files = [path for path in (ROOT / "docs" / "images").rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < 2e6
