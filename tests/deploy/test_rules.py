"""Recording rules and alerts, by promtool: each alert over series in which it fires, and over series in which not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import yaml

from support.deploy.prometheus import DEPLOY, RULES
from support.deploy.tools import need

FOLDER = DEPLOY / "prometheus"
UNIT_TESTS = Path(__file__).with_name("alerts_test.yml")
DOCUMENT = DEPLOY.parent / "docs" / "deployment.md"


def promtool(*arguments: str, cwd: Path) -> None:
    program = need("promtool", "apt-get install prometheus")
    done = subprocess.run([program, *arguments], cwd=cwd, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr


def alerts() -> list[dict]:
    return [
        rule
        for group in yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]


def test_rules_are_valid() -> None:
    promtool("check", "rules", *RULES, cwd=FOLDER)


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    for file in (*(FOLDER / name for name in RULES), UNIT_TESTS):
        shutil.copy(file, tmp_path)
    promtool("test", "rules", UNIT_TESTS.name, cwd=tmp_path)


def test_each_alert_has_both_tests() -> None:
    tested: dict[str, list[bool]] = {}
    for test in yaml.safe_load(UNIT_TESTS.read_text())["tests"]:
        for case in test["alert_rule_test"]:
            tested.setdefault(case["alertname"], []).append(bool(case.get("exp_alerts")))
    assert tested == {alert["alert"]: [True, False] for alert in alerts()}


def test_each_alert_says_how_bad_it_is_and_what_to_do_and_is_documented() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for alert in alerts():
        assert alert["labels"]["severity"] in ("page", "ticket"), alert["alert"]
        assert set(alert["annotations"]) == {"summary", "action"}, alert["alert"]
        assert f"`{alert['alert']}`" in text, alert["alert"]


def test_the_configuration_is_valid(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "compose" / "prometheus.yml", tmp_path)
    for name in RULES:
        shutil.copy(FOLDER / name, tmp_path)
    promtool("check", "config", "prometheus.yml", cwd=tmp_path)
