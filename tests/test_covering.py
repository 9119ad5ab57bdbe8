"""Of many combinations of parameters some are run, the same each time, that cover all pairs of values; of few, all."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.covering import FEW, covering

CASES = [f"case {number}" for number in range(12)]
MACHINES = ["cpu-portable", "cpu-avx2", "cpu-avx512", "emulation"]
COMBINATIONS = list(itertools.product(CASES, MACHINES, [1, 2, 3]))
MANY = """
import pytest

@pytest.mark.parametrize("loss", [[1], [2], [3]])
@pytest.mark.parametrize("machine", ["cpu-portable", "cpu-avx2", "emulation"])
@pytest.mark.parametrize(("case", "name"), [(case, str(case)) for case in range(6)])
def test_many(case, name, machine, loss):
    pass

@pytest.mark.parametrize("case", range(8))
def test_few(case):
    pass

@pytest.mark.parametrize(("case", "other", "third"), [(a, b, c) for a in range(2) for b in range(2) for c in range(3)])
def test_a_table(case, other, third):
    pass

def test_without():
    pass
"""
TESTS = 54 + 8 + 12 + 1


def pairs(combinations: list[tuple[object, ...]], machines: bool) -> set[object]:
    """Returns all pairs of values; unless `machines`, instruction sets all count as the CPU."""
    seen = set()
    for combination in combinations:
        values = [value if machines else str(value).partition("-")[0] for value in combination]
        seen |= set(itertools.combinations(enumerate(values), 2))
    return seen


def test_all_pairs_are_covered_with_fewer_combinations() -> None:
    chosen = [COMBINATIONS[index] for index in covering(COMBINATIONS)]
    assert len(chosen) == len(set(chosen)) < len(COMBINATIONS) / 3
    assert pairs(chosen, machines=False) == pairs(COMBINATIONS, machines=False)


def test_values_that_take_turns_all_get_theirs() -> None:
    chosen = [COMBINATIONS[index] for index in covering(COMBINATIONS)]
    counts = {machine: sum(machine in combination for combination in chosen) for machine in MACHINES}
    assert min(counts.values()) >= 3, counts


def test_parameters_that_do_not_take_turns_have_all_their_pairs() -> None:
    numbered = list(itertools.product(range(5), range(6), range(7)))
    chosen = [numbered[index] for index in covering(numbered)]
    assert len(chosen) < len(numbered) / 3
    assert pairs(chosen, machines=True) == pairs(numbered, machines=True)


def test_the_pairs_of_an_incomplete_product_are_covered_too() -> None:
    some = [combination for index, combination in enumerate(COMBINATIONS) if index % 5]
    chosen = [some[index] for index in covering(some)]
    assert pairs(chosen, machines=False) == pairs(some, machines=False)


def test_instruction_sets_take_turns_in_tests_without_other_parameters() -> None:
    single = [(machine,) for machine in MACHINES]
    chosen = [[single[index][0] for index in covering(single, f"test_{number}")] for number in range(40)]
    assert all(len(each) == 2 and "emulation" in each for each in chosen)
    assert {each[0] for each in chosen} == set(MACHINES[:3])
    two = [*itertools.product(MACHINES, ("first", "second"))]
    assert {two[index][0] for index in covering(two)} == set(MACHINES)


@pytest.mark.parametrize("count", range(FEW + 1))
def test_a_few_combinations_are_all_kept(count: int) -> None:
    assert covering([("same", "same")] * count) == list(range(count))


def collected(folder: Path, seed: str, *arguments: str) -> list[str]:
    """Returns the names of the tests of MANY that pytest would run, and the count in its summary."""
    (folder / "test_many.py").write_text(MANY)
    environment = {
        "PYTHONPATH": str(Path(__file__).parent),
        "PYTHONHASHSEED": seed,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "support.covering", "-c", os.devnull]
    done = subprocess.run(
        [*command, "--rootdir", folder, *arguments, folder],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.strip().splitlines()
    return [line.partition("::")[2] for line in lines if "::" in line] + [lines[-1].partition(" in ")[0]]


def test_pytest_runs_the_chosen_and_says_how_many_it_left_out(tmp_path: Path) -> None:
    chosen = collected(tmp_path, "1")
    assert chosen == collected(tmp_path, "2")
    many = [name for name in chosen if name.startswith("test_many")]
    assert 18 <= len(many) < 54 / 2
    assert chosen[-1] == f"{len(chosen) - 1}/{TESTS} tests collected ({TESTS - len(chosen) + 1} deselected)"
    # All rows of a table are kept, though fewer would have all its pairs.
    assert [name.partition("[")[0] for name in chosen[len(many) : -1]] == [
        *["test_few"] * 8,
        *["test_a_table"] * 12,
        "test_without",
    ]


def test_pytest_runs_everything_when_it_is_asked_to(tmp_path: Path) -> None:
    assert len(collected(tmp_path, "1", "--whole")) == TESTS + 1
