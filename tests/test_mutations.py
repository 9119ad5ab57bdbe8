"""The table of `make mutations`, which runs too seldom to tell soon that the code has moved on."""

from __future__ import annotations

from tests.mutations.__main__ import ROOT, mutations


def test_every_fault_can_be_planted_and_looked_for() -> None:
    faults = mutations()
    assert len({fault.name for fault in faults}) == len(faults) >= 40
    for fault in faults:
        assert fault.after != fault.before
        assert all((ROOT / test.split("::")[0]).exists() for test in fault.tests), fault.name
