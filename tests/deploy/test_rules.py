"""Recording rules and alerts, by promtool: each alert over series in which it fires, and over series in which not."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import yaml

from support.deploy.prometheus import DEPLOY, RULES
from support.deploy.tools import need

FOLDER = DEPLOY / "prometheus"
CASES = Path(__file__).with_name("alerts_test.yml")
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


def series(given: dict[str, str]) -> list[dict[str, str]]:
    found = []
    for name, values in given.items():
        metric, _, labels = name.rstrip("}").partition("{")
        place = "" if "instance=" in labels else 'instance="a",'
        found.append({"series": f'{metric}{{job="lumigrad",{place}{labels}}}', "values": values})
    return found


def cases_of(alert: dict, case: dict) -> list[dict]:
    """Returns what promtool is to test: that an alert fires, and that it does not."""
    labels = {"job": "lumigrad", **alert["labels"], **case["labels"]}
    annotations = {**alert["annotations"], "summary": case["summary"]}
    fired = {"exp_alerts": [{"exp_labels": labels, "exp_annotations": annotations}]}
    return [
        {
            "name": f"{alert['alert']} {kind}",
            "interval": "1m",
            "input_series": series(case[kind]),
            "alert_rule_test": [{"eval_time": case["after"], "alertname": alert["alert"], **expected}],
        }
        for kind, expected in (("fires", fired), ("quiet", {}))
    ]


def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    given = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    assert list(given) == [alert["alert"] for alert in alerts()]
    tests = [case for alert in alerts() for case in cases_of(alert, given[alert["alert"]])]
    for name in RULES:
        shutil.copy(FOLDER / name, tmp_path)
    (tmp_path / "test.yml").write_text(
        yaml.safe_dump({"rule_files": list(RULES), "evaluation_interval": "1m", "tests": tests}), encoding="utf-8"
    )
    promtool("test", "rules", "test.yml", cwd=tmp_path)


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
