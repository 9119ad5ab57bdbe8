"""`lumigrad convert`: what one format holds is written in another."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest

from lumigrad.client.formats import load_gaussians, read_scene, save_gaussians
from support.gaussians.clouds import Cloud, assert_close, cloud, gaussians_of
from support.workers.forks import lumigrad


@pytest.fixture
def made() -> Cloud:
    return cloud(degree=2)


def convert(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return lumigrad("convert", *arguments, folder=folder)


def test_there_and_back_through_every_format(tmp_path: Path, made: Cloud) -> None:
    save_gaussians(gaussians_of(made), tmp_path / "scene.ply", antialiased=True)
    for source, output in (("scene.ply", "scene.spz"), ("scene.spz", "again.ply"), ("again.ply", "scene.splat")):
        done = convert(source, output, folder=tmp_path)
        assert done.returncode == 0, done.stderr
        count, size = len(load_gaussians(tmp_path / output)), (tmp_path / output).stat().st_size
        assert done.stdout == f"{output}: {count:,} Gaussians, {size:,} bytes\n"
        assert count == len(gaussians_of(made))
    assert_close(
        load_gaussians(tmp_path / "again.ply"), made, means=1e-3, scales=0.06, opacity=0.011, sh=0.07, angle=0.03
    )
    assert read_scene(tmp_path / "again.ply").antialiased


def test_what_is_not_finite_is_left_out_and_said(tmp_path: Path, made: Cloud) -> None:
    made.means[1] = np.nan
    gaussians = gaussians_of(made)
    save_gaussians(gaussians, tmp_path / "scene.ply")
    done = convert("scene.ply", "out.ply", folder=tmp_path)
    assert done.stderr == "lumigrad: left out 1 Gaussians that are not finite\n"
    assert len(load_gaussians(tmp_path / "out.ply")) == len(gaussians) - 1


def test_refusals_are_of_the_shell(tmp_path: Path, made: Cloud) -> None:
    save_gaussians(gaussians_of(made), tmp_path / "scene.ply")
    done = convert("scene.ply", "scene.sog", folder=tmp_path)
    assert done.returncode != 0 and "expected a name that ends in .ply, .spz or .splat, got scene.sog" in done.stderr
    done = convert("absent.ply", "scene.spz", folder=tmp_path)
    assert done.returncode == 1 and "no such file: absent.ply" in done.stderr
    assert not (tmp_path / "scene.spz").exists()
