"""deploy/envoy as Envoy itself reads it."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.deploy.certificates import Authority
from support.deploy.envoy import configuration, validate

TARGETS = ["127.0.0.1:50051", "127.0.0.1:50052"]


@pytest.mark.parametrize("encrypted", [True, False])
def test_envoy_accepts_it(encrypted: bool, tmp_path: Path) -> None:
    identity = Authority(tmp_path).sign("envoy") if encrypted else None
    done = validate(configuration(TARGETS, identity), tmp_path)
    assert done.returncode == 0, done.stderr
    # Envoy warns there of settings that it is going to drop.
    assert "deprecated" not in done.stderr.lower()


def test_envoy_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    config = configuration(TARGETS)
    config["static_resources"]["clusters"][0]["ring_hash_config"] = {}
    done = validate(config, tmp_path)
    assert done.returncode != 0 and "ring_hash_config" in done.stderr
