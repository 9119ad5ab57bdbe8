"""The check of the resources that CUDA kernels use: its input, and when it fails."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cuda_budgets.__main__ import FILE, compare, lacking, read, release, write
from tests.cuda_budgets.usage import Usage, demangled, instructions_of, resources_of
from tests.cuda_budgets.visits import Visit, visits_of
from tests.cuda_budgets.visits import compare as compare_visits

MANGLED = "_ZN8lumigrad7density41_GLOBAL__N__543fcc79_9_gather_cu_2e8d9bbc12split_kernelILi3EEEvNS0_8ChildrenEPf"
RESOURCES = f"""
Fatbin elf code:
================
arch = sm_90

Resource usage:
 Common:
  GLOBAL:0
 Function {MANGLED}:
  REG:38 STACK:16 SHARED:1024 LOCAL:8 CONSTANT[0]:456 TEXTURE:0 SURFACE:0 SAMPLER:0
"""
CODE = f"""
        code for sm_90
        .target sm_90

                Function : {MANGLED}
        .headerflags    @"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;          /* 0x00000a0000017a02 */
                                                                   /* 0x000fe40000000f00 */
        /*0010*/              @!P0 DFMA R2, R4, R6, R8 ;           /* 0x000fe40000000f00 */
        /*0020*/               @P1 STL.64 [R1+0x8], R2 ;           /* 0x000fe40000000f00 */
        /*0030*/                   LDL R3, [R1] ;                  /* 0x000fe40000000f00 */
        /*0040*/                   MUFU.RCP64H R3, R5 ;            /* 0x000fe40000000f00 */
        /*0050*/                   MUFU.EX2 R3, R5 ;               /* 0x000fe40000000f00 */
        /*0060*/              @UP0 MATCH.ANY R9, R2 ;              /* 0x000fe40000000f00 */
"""


def test_the_tools_output_is_read() -> None:
    key = ("90", MANGLED)
    assert resources_of(RESOURCES.splitlines()) == {key: (38, 24)}
    counts = instructions_of(CODE.splitlines())[key]
    assert counts == {"LDC": 1, "DFMA": 1, "STL": 1, "LDL": 1, "MUFU64": 1, "MUFU": 1, "MATCH": 1}
    assert demangled({MANGLED}) == {MANGLED: "lumigrad::density::split_kernel<3> in gather.cu"}


def test_what_uses_more_or_has_no_budget_fails() -> None:
    key, other = ("90", "draw in blend.cu"), ("80", "draw in blend.cu")
    budget = {key: Usage(48, 8, 2, 0, 0)}
    assert compare(budget, budget) == ([], [])
    assert compare(budget, {key: Usage(40, 8, 2, 0, 0)}) == (
        [],
        ["sm_90 draw in blend.cu: registers 40, budget 48"],
    )
    assert compare(budget, {key: Usage(41, 8, 2, 0, 0)}) == ([], [])
    assert compare(budget, {key: Usage(49, 8, 2, 0, 0)})[0] == ["sm_90 draw in blend.cu: registers 49, budget 48"]
    over, under = compare(budget, {key: Usage(48, 8, 3, 1, 0)})
    assert over == [
        "sm_90 draw in blend.cu: local_accesses 3, budget 2",
        "sm_90 draw in blend.cu: fp64 1, budget 0",
    ]
    assert under == []
    assert compare(budget, {})[0] == ["sm_90 draw in blend.cu: has a budget, but is not in the module"]
    assert compare(budget, {**budget, other: Usage()})[0] == ["sm_80 draw in blend.cu: has no budget"]


def test_budgets_are_written_and_read(tmp_path: Path) -> None:
    budgets = {("90", "rows_kernel<1, false> in evaluate.cu"): Usage(96, 80, 62, 0, 33)}
    write(tmp_path / "budgets.csv", "13.0", budgets)
    assert read(tmp_path / "budgets.csv") == ("13.0", budgets)
    toolkit, all_budgets = read(FILE)
    assert toolkit
    assert {sm for sm, _ in all_budgets} == {"80", "90"}


def test_in_continuous_integration_all_architectures_of_the_release_are_compiled(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert release() == ["75", "80", "86", "89", "90", "100", "120"]
    monkeypatch.setenv("CI", "true")
    assert lacking(release()) == []
    assert lacking(["80", "90"]) == ["75", "86", "89", "100", "120"]
    monkeypatch.delenv("CI")
    assert lacking(["80", "90"]) == []
    (tmp_path / "cuda.cmake").write_text("", encoding="utf-8")
    with pytest.raises(ValueError, match="no list"):
        release(tmp_path / "cuda.cmake")


def test_the_instructions_of_a_visit_are_those_of_the_shortest_loop_with_an_exponential() -> None:
    code = CODE + (
        "        /*0070*/                   BAR.SYNC.DEFER_BLOCKING 0x0 ;    /* 0x0 */\n"
        "        /*0080*/              @!P0 ATOMS.CAST.SPIN R4, [R2], R4, R5 ; /* 0x0 */\n"
        "        /*0090*/               @P0 BRA 0x40 ;                       /* 0x0 */\n"
        "        /*00a0*/               @P1 BRA P2, 0x10 ;                   /* 0x0 */\n"
        "        /*00b0*/               @P1 BRA 0xa0 ;                       /* 0x0 */\n"
        "        /*00c0*/                   BRA 0xc0 ;                       /* 0x0 */\n"
    )
    key = ("90", MANGLED)
    assert visits_of(code.splitlines()) == {key: Visit(loop=6, barriers=1, shared_atomics=1)}
    assert visits_of(CODE.splitlines()) == {}
    budget = {key: Visit(6, 0, 1)}
    shown, over = compare_visits(budget, {key: Visit(6, 1, 0)})
    assert shown == [f"sm_90 {MANGLED}: loop 6 of 6, barriers 1 of 0, shared_atomics 0 of 1"]
    assert over == [f"sm_90 {MANGLED}: barriers 1, budget 0"]
    assert compare_visits(budget, {})[1] == [f"sm_90 {MANGLED}: has a budget for visits, but is not in the module"]
