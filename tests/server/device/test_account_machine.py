"""Calls, parts, scenes, states and trainings come, change and end in any order: every account is back at its start."""

from __future__ import annotations

from hypothesis import settings

from support.models.account_machine import AccountMachine

TestAccounts = AccountMachine.TestCase
TestAccounts.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
