"""The program behind `make gpu`, as far as it runs without a GPU."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from lumigrad.client import Camera, Client, Gaussians
from support import gpu_cases
from support.workers.slow_render import wait_until
from support.workers.worker import worker
from tests.gpu import __main__ as program
from tests.gpu import build, checks, context, profiling, site, table
from tests.gpu.client_processes import Calls, rate
from tests.gpu.context import OUT_OF_TIME, Context, read_json
from tests.gpu.device import IN_A_ROW, Device, in_turns, regimes
from tests.gpu.oracles import compare
from tests.gpu.runner import run_cases, supervise

NCU = """==PROF== Connected to process 7
"ID","Kernel Name","gpu__time_duration.sum","dram__throughput.avg.pct_of_peak_sustained_elapsed",STALL
"","","ns","%","inst"
"0","void lumigrad::<unnamed>::draw_kernel<(int)3, (bool)0>(const float *, int)","1,000","50","0.5"
"1","void lumigrad::<unnamed>::draw_kernel<(int)3, (bool)1>(const float *, int)","9,000","70","1"
"2","void lumigrad::<unnamed>::draw_kernel<(int)3, (bool)1>(const float *, int)","7,000","80","2"
"3","void lumigrad::(anonymous namespace)::sum_kernel<lumigrad::Add<(int)3>>","500","80","0"
""".replace("STALL", '"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio"')
SUITE = """
import os, signal, time
import pytest

def test_good(): time.sleep(2.1 if "KILLED" in os.environ else 0)

def test_after():
    if "KILLED" in os.environ:
        os.kill(os.getpid(), signal.SIGKILL)

def test_wrong(): assert False

@pytest.mark.skip(reason="not today")
def test_skipped(): pass
"""


def within(folder: Path, seconds: float = 240.0, device: str = "emulation") -> Context:
    return Context(device, folder, time.monotonic() + seconds)


def tool(folder: Path, name: str, script: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    file.chmod(0o755)


@pytest.fixture
def no_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH without ncu and compute-sanitizer; a test may add programs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def test_cases_end_as_they_may_and_time_ends_them(tmp_path: Path) -> None:
    # Two processes start before the case that hangs, which takes long on a busy machine.
    for seconds in (4.0, 20.0, 100.0):
        results = supervise(within(tmp_path, seconds), "bench", "support.gpu_cases")
        status = {name: case["status"] for name, case in results["cases"].items()}
        if status["after the crash"] != OUT_OF_TIME:
            break
    assert status == {
        "good": "ok",
        "lacking": "not here",
        "failing": "failed",
        "crashing": "ended the process: exit status 7",
        "after the crash": "ok",
        "hanging": OUT_OF_TIME,
        "never begun": OUT_OF_TIME,
    }
    assert "a value is wrong" in results["cases"]["failing"]["why"]
    assert read_json(tmp_path / "bench.json") == results
    text = table.text(tmp_path, "emulation")
    assert "| good | forward | 1.0 | 2.0 | 0.5 | 100 |" in text
    assert f"- hanging: {OUT_OF_TIME}" in text


def test_a_broken_device_ends_the_process(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    context.write_json(file, {"cases": {}})
    device = gpu_cases.Device("broken")
    assert run_cases(gpu_cases.cases(device), device, file, time.monotonic() + 60.0) == 3
    assert read_json(file)["cases"]["crashing"]["status"] == "not run"


def test_commands_end_in_time_and_keep_what_they_wrote(tmp_path: Path) -> None:
    # The command may begin late on a busy machine.
    for seconds in (2.0, 20.0, 100.0):
        done = within(tmp_path, seconds).run(["sh", "-c", "echo so far; sleep 600"])
        assert done.status == OUT_OF_TIME
        if "so far" in done.output:
            break
    assert "so far" in done.output
    assert within(tmp_path).run(["/nowhere/nvcc"]).code == 127


def test_progress_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(context, "_PROGRESS", 0.2)
    # Nobody may look in time on a busy machine.
    for seconds in (2, 10, 50):
        slow = f"import time; print('[3/70] Building', flush=True); time.sleep({seconds})"
        assert within(tmp_path).run([sys.executable, "-c", slow]).code == 0
        if shown := capsys.readouterr().err:
            break
    assert shown.count("s: [3/70] Building\n") == 1


STEPS = """
import sys
from tests.gpu import __main__ as program, runner
import tests.gpu.bench
tests.gpu.bench.supervise = lambda context, step, _: runner.supervise(context, step, "support.gpu_cases")
sys.argv = ["gpu", "bench", "--device", "emulation", "--budget", "600", "--out", sys.argv[1]]
sys.exit(program.main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_results_outlast_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    """Results are in both folders, and `gpu table` finds them; the process of the cases ends too."""
    out, copies = tmp_path / "out", tmp_path / "copies"
    environment = {**os.environ, **context.environment(), "OUT": str(copies)}
    process = subprocess.Popen([sys.executable, "-c", STEPS, str(out)], env=environment, cwd=context.ROOT)
    try:
        hanging = {"status": "started"}
        # The copy is written last, so that both folders hold the case once it is there.
        wait_until(lambda: read_json(copies / "bench.json").get("cases", {}).get("hanging") == hanging, "the case")
        group = psutil.Process(process.pid).children()
        assert group
    finally:
        process.send_signal(number)
        process.wait(150)
    assert not psutil.wait_procs(group, 150)[1]
    found = read_json(out / "bench.json")
    assert found["cases"]["good"]["status"] == "ok"
    assert read_json(copies / "bench.json") == found
    assert (copies / "table.md").is_file() == (number == signal.SIGTERM)
    monkeypatch.setenv("OUT", str(copies))
    monkeypatch.setattr(sys, "argv", ["gpu", "table", "--out", str(out)])
    assert program.main() == 0
    shown = capsys.readouterr().out
    assert "| good | forward | 1.0 | 2.0 | 0.5 | 100 |" in shown
    assert "- hanging: cut off" in shown
    assert (copies / "table.md").read_text(encoding="utf-8").strip() == shown.strip()


def test_counts_of_tests_are_written_while_they_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts are written as tests run, so that they outlast a kill; at the end all of them are there."""
    suite, file = tmp_path / "test_some.py", tmp_path / "test.json"
    suite.write_text(SUITE, encoding="utf-8")
    broken = tmp_path / "test_broken.py"
    broken.write_text("import no_such_module", encoding="utf-8")
    file.write_text("{}", encoding="utf-8")
    monkeypatch.setattr(checks, "_options", lambda: ["-c", str(tmp_path / "none.ini"), "--rootdir", str(tmp_path)])
    (tmp_path / "none.ini").write_text("[pytest]", encoding="utf-8")
    monkeypatch.setenv("KILLED", "1")
    killed = checks._tests(within(tmp_path), "kernels", 1.0, [str(suite)])
    assert killed["status"] == "exit status -9"
    assert killed["passed"] >= 1
    monkeypatch.delenv("KILLED")
    context.write_json(file, {"tests": {"kernels": {"status": "started"}}})
    found = checks._tests(within(tmp_path), "kernels", 1.0, [str(suite)])
    assert (found["passed"], found["failed"], found["skipped"]) == (2, 1, 1)
    assert found["failures"] == ["test_some.py::test_wrong"]
    assert found["skipped_because"] == ["not today"]
    found = checks._tests(within(tmp_path), "kernels", 1.0, [str(suite), str(broken)])
    assert found["failures"][0] == "test_broken.py"


def test_steps_share_the_time(tmp_path: Path) -> None:
    steps = list(program.SHARES)
    given = [program._context(step, steps, "cuda", tmp_path, time.monotonic() + 1e6).left() for step in steps]
    assert given == pytest.approx([1e6 * program.SHARES[step] for step in steps], abs=100.0)
    alone = program._context("bench", ["bench"], "cuda", tmp_path, time.monotonic() + 1e6)
    assert alone.left() == pytest.approx(1e6, abs=100.0)


def test_tools_that_are_missing_are_reported(tmp_path: Path, no_tools: Path) -> None:
    assert profiling.run(within(tmp_path))["status"] == "not here"
    assert checks._sanitized(within(tmp_path), "memcheck") == {"status": "not here", "why": "no compute-sanitizer"}
    tool(no_tools, "compute-sanitizer", 'echo "========= Invalid __global__ write"; exit 86')
    found = checks._sanitized(within(tmp_path), "memcheck")
    assert found["status"] == "found errors"
    assert found["output"] == ["========= Invalid __global__ write"]
    assert checks._sanitized(within(tmp_path, 0.0), "memcheck") == {"status": OUT_OF_TIME}


@pytest.mark.parametrize(
    ("known", "option"), [("--kernel-name arg", ["--kernel-name", "kns=lumigrad"]), ("--tool arg", [])]
)
def test_only_kernels_of_the_project_are_searched_for_races(
    tmp_path: Path, no_tools: Path, known: str, option: list[str]
) -> None:
    told = f'if [ "$1" = --help ]; then echo "{known}"; else echo "$@" >> {tmp_path}/arguments; fi'
    tool(no_tools, "compute-sanitizer", told)
    for name in ("racecheck", "memcheck"):
        assert checks._sanitized(within(tmp_path), name)["status"] == "ok"
    races, memory = (tmp_path / "arguments").read_text(encoding="utf-8").splitlines()
    assert races.startswith(" ".join(["--tool racecheck --error-exitcode 86", *option, sys.executable]))
    assert "lumigrad" not in memory.split(sys.executable)[0]


def test_a_step_writes_its_results_and_the_table_says_that_they_are_of_no_gpu(
    tmp_path: Path, no_tools: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "counted.csv").write_text(NCU, encoding="utf-8")
    write = (
        f'echo "$@" >> {tmp_path}/asked; while [ "$1" != --log-file ]; do shift; done; cp {tmp_path}/counted.csv "$2"'
    )
    tool(no_tools, "ncu", write)
    arguments = ["profile", "--device", "emulation", "--out", str(tmp_path), "--budget", "60"]
    monkeypatch.setattr(sys, "argv", ["gpu", *arguments])
    assert program.main() == 0
    found = read_json(tmp_path / "profile.json")
    draw, other = (f"lumigrad::draw_kernel<(int)3, (bool){number}>" for number in (1, 0))
    assert list(found["kernels"]) == [draw, other, "lumigrad::sum_kernel<lumigrad::Add<(int)3>>"]
    assert found["kernels"][draw]["duration"] == 8000
    assert found["kernels"][draw]["stalls"] == {**dict.fromkeys(profiling.REASONS, 0.0), "barrier": 1.5}
    assert set(found["engines"]) == set(profiling.ENGINES)
    asked = (tmp_path / "asked").read_text(encoding="utf-8").splitlines()
    assert "--kernel-name regex:^(project_kernel|list_tiles_kernel|draw_kernel|pixels_kernel|" in asked[0]
    assert "long_scoreboard" in asked[0] and "tests.gpu.profiling gaussians" in asked[0]
    assert capsys.readouterr().out == f"the results so far are in {tmp_path / 'table.md'}\n"
    monkeypatch.setattr(sys, "argv", ["gpu", "table", *arguments[1:]])
    assert program.main() == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# DRY RUN")
    assert f"| {draw} | {2 * len(profiling.ENGINES)} | 8000 | 75 |" in shown
    assert (tmp_path / "table.md").read_text(encoding="utf-8").strip() == shown.strip()


def test_the_machine_is_probed_and_packages_are_put_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages are imported from the folder by a Python that does not look elsewhere for them."""
    pytest.importorskip("tomllib", reason="Python 3.10 reads no pyproject.toml")
    from lumigrad.kernels import _native

    for module in (site, context):
        monkeypatch.setattr(module, "SITE", tmp_path / "site")
    monkeypatch.setattr(site, "installed_native", lambda: Path(_native.__file__))
    found = build.run(within(tmp_path))
    assert found["status"] == "ok", found
    assert found["gpu"]["copy_gb_per_s"] > 0
    folder = tmp_path / "site" / "lumigrad"
    assert (folder / "kernels" / "gaussians" / "forward.py").is_file()
    assert (folder / "server" / "__init__.py").is_file()
    assert "serve = " in next(folder.parent.glob("lumigrad-*.dist-info/entry_points.txt")).read_text(encoding="utf-8")


def test_calls_are_timed_in_turns_with_events_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device's clock advances by 1 ms with each "fast" call and by 3 ms with each "slow" one."""
    clock, made = [0.0], []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            self.time = -1.0

        def record(self) -> None:
            self.time = clock[0]

        def elapsed_time(self, stop: Event) -> float:
            return stop.time - self.time

    def call(name: str, milliseconds: float, argument: int) -> None:
        made.append((name, argument))
        clock[0] += milliseconds

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    calls: Any = {"fast": partial(call, "fast", 1.0), "slow": partial(call, "slow", 3.0)}
    times = in_turns(Device("cuda"), calls, prepare={"slow": lambda number: -number})
    assert [(name, each.median_ms, each.p99_ms, each.runs) for name, each in times.items()] == [
        ("fast", 1.0, 1.0, 100),
        ("slow", 3.0, 3.0, 100),
    ]
    assert made[:4] == [("fast", 0), ("slow", 0), ("fast", 1), ("slow", -1)]
    assert len(made) == 2 * (20 + 100)
    assert in_turns(Device("cuda"), calls, seconds=0.0)["fast"].runs == 5


def test_calls_are_timed_alone_and_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device takes 1 ms for each call and its host 2 ms, on a clock that they share."""
    host, free = [0.0], [0.0]

    def call(_: int) -> None:
        host[0] += 2e-3
        free[0] = max(free[0], host[0]) + 1e-3

    monkeypatch.setattr(torch.cuda, "synchronize", lambda: host.__setitem__(0, max(host[0], free[0])))
    monkeypatch.setattr("tests.gpu.device.time.perf_counter", lambda: host[0])
    found = regimes(Device("cuda"), {"ours": call, "theirs": call})
    assert found["ours"] == found["theirs"]
    assert found["ours"].latency_ms == pytest.approx(3.0)
    assert found["ours"].throughput_ms == pytest.approx(2.0 + 1.0 / IN_A_ROW)


def test_clients_of_other_processes_are_counted() -> None:
    with worker() as process:
        with Client(process.target) as client:
            handle = client.put(
                Gaussians(
                    [[0.0, 0.0, 4.0]], opacities=[0.9], colors=[[1.0, 0.0, 0.0]], covariances=[[1.0, 0, 0, 1.0, 0, 1.0]]
                )
            )
        camera = Camera.opencv(20.0, 20.0, 16.0, 12.0, np.eye(3), (0.0, 0.0, 0.0), 32, 24)
        calls = [
            Calls(process.target, handle, camera, {"image_format": "uint8"}, lane) for lane in ("stream", "shared")
        ]
        found = rate(calls, 0.2)
        assert found["calls_per_s"] > 0 and found["median_ms"] > 0
        with pytest.raises(RuntimeError, match=r"InvalidArgument: .*image_format"):
            rate([Calls(process.target, handle, camera, {"image_format": "none"})], 0.2)


def test_the_kernels_are_compiled_for_the_device_alone(
    tmp_path: Path, no_tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "BUILD", tmp_path)
    monkeypatch.setattr(build, "_tool", lambda name: str(no_tools / name))
    monkeypatch.setattr(build, "_headers", lambda: [])
    module = f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    made = f"mkdir -p {tmp_path}/native; touch {tmp_path}/native/{module}"
    tool(no_tools, "cmake", f'echo "$@" >> {tmp_path}/commands; if [ "$1" = --build ]; then {made}; fi')
    native, steps = build._compile(within(tmp_path), [9, 0])
    assert native == tmp_path / "native" / module
    assert [step["status"] for step in steps.values()] == ["ok", "ok"]
    commands = (tmp_path / "commands").read_text(encoding="utf-8")
    assert "-DLUMIGRAD_CUDA_ARCHITECTURES=90-real" in commands
    assert f"-DPython_EXECUTABLE={sys.executable}" in commands
    tool(no_tools, "cmake", 'echo "error: no kernel was compiled"; exit 1')
    native, steps = build._compile(within(tmp_path), [9, 0])
    assert (native, list(steps), steps["configure"]["status"]) == (None, ["configure"], "exit status 1")
    assert "error: no kernel was compiled" in build._errors(within(tmp_path))


def test_messages_of_other_protos_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site, "PACK", tmp_path)
    monkeypatch.setattr(site, "_INSTALLED", "nowhere")
    (tmp_path / "protos.sha256").write_text(site.protos_digest(), encoding="utf-8")
    assert list(site._messages()) == [tmp_path / "messages"]
    (tmp_path / "protos.sha256").write_text("of yesterday", encoding="utf-8")
    assert not list(site._messages())


def test_results_that_differ_are_named() -> None:
    expected: Any = {"picture": np.ones(10000, np.float32), "gradient": np.ones(10000, np.float32)}
    close = {name: value + 1e-4 for name, value in expected.items()}
    assert compare(close, expected) == {}
    close["gradient"][:100] = np.nan
    assert compare(close, expected) == {"gradient": 0.01}
    assert compare({"picture": close["picture"]}, expected) == {"gradient": 1.0}
