"""Fixtures that several layers share: the machines on which the engines are tested."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable

import pytest
import torch

# Before anything imports the native module that is installed.
from support.backends import native  # noqa: F401

# isort: split
from support.backends import engines, gaussian_engines, mesh_engines, training_engines

pytest_plugins = ("support.covering", "support.turns")

# What the shell may say to the commands and libraries that tests run: tests say themselves what they need of it.
_OF_THE_SHELL = ("LUMIGRAD_DEBUG", "LUMIGRAD_TARGET", "LUMIGRAD_TLS", "LUMIGRAD_TOKEN")


def pytest_configure(config: pytest.Config) -> None:
    for name in list(os.environ):
        # The test of the image reaches beyond this machine; all others stay on it.
        is_proxy = name.lower().endswith("_proxy") and "LUMIGRAD_TEST_IMAGE" not in os.environ
        if name in _OF_THE_SHELL or name.startswith("OTEL_") or is_proxy:
            del os.environ[name]
    # References are made of many small operations, and two threads would wait for each other at each of them.
    torch.set_num_threads(1)
    # A shell has what it starts in the background ignore Ctrl-C, and so would every process that tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _machines(names: Iterable[str]) -> list[object]:
    there = [name for name in names if name != "gpu" or torch.cuda.is_available()]
    return [pytest.param(name, marks=pytest.mark.gpu) if name == "gpu" else name for name in there]


@pytest.fixture(params=_machines(engines.ENGINES))
def engine(request: pytest.FixtureRequest) -> engines.Engine:
    """For spheres, one machine after the other; a GPU only where there is one."""
    return engines.ENGINES[request.param]()


@pytest.fixture(params=_machines(gaussian_engines.ENGINES))
def gaussian_engine(request: pytest.FixtureRequest) -> gaussian_engines.Engine:
    """For Gaussians, one machine after the other, and each instruction set of the CPU."""
    return gaussian_engines.ENGINES[request.param]()


@pytest.fixture(params=_machines(mesh_engines.ENGINES))
def mesh_engine(request: pytest.FixtureRequest) -> mesh_engines.Engine:
    """For meshes, one machine after the other, and each instruction set of the CPU."""
    return mesh_engines.ENGINES[request.param]()


@pytest.fixture(params=_machines(training_engines.ENGINES))
def training_engine(request: pytest.FixtureRequest) -> training_engines.Engine:
    """For training, one machine after the other, and each instruction set of the CPU."""
    return training_engines.ENGINES[request.param]()
