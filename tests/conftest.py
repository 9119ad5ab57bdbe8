"""Fixtures that tests of several layers share: the back ends on which the engines are tested."""

from __future__ import annotations

import gc
import logging
import os
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

# Must precede any import of the installed native module.
from support.backends import native  # noqa: F401

# isort: split
from support.backends import engines, gaussian_engines, mesh_engines, training_engines

pytest_plugins = ("support.covering", "support.reports", "support.turns")

# Examples are the same in every run, and new ones with `--whole` or LUMIGRAD_FUZZ_SECONDS. An example may take longer
# than hypothesis' 200 ms, since the machine may be busy.
_EXAMPLES = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile("repeatable", _EXAMPLES, derandomize=True)
hypothesis.settings.register_profile("exploring", _EXAMPLES)

_TESTS = Path(__file__).parent
# Environment variables that affect the commands and libraries under test; tests set those that they need.
_REMOVED_VARIABLES = ("LUMIGRAD_DEBUG", "LUMIGRAD_TARGET", "LUMIGRAD_TLS", "LUMIGRAD_TOKEN")


def pytest_configure(config: pytest.Config) -> None:
    explores = config.getoption("whole") or "LUMIGRAD_FUZZ_SECONDS" in os.environ
    hypothesis.settings.load_profile("exploring" if explores else "repeatable")
    for name in list(os.environ):
        # Only the test of the container image uses the network.
        is_proxy = name.lower().endswith("_proxy") and "LUMIGRAD_TEST_IMAGE" not in os.environ
        if name in _REMOVED_VARIABLES or name.startswith("OTEL_") or is_proxy:
            del os.environ[name]
    # imageio-ffmpeg would fork the process, with the threads of gRPC and JAX, to run Python in the child.
    os.environ["IMAGEIO_FFMPEG_NO_PREVENT_SIGINT"] = "1"
    # The references consist of many small operations, for which synchronising two threads costs more than it gains.
    torch.set_num_threads(1)
    # A shell makes background processes ignore SIGINT, and processes that tests start would inherit that.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def keep_loggers() -> Iterator[None]:
    """Restores loggers after a test, whose handlers write to streams that are closed then."""
    loggers = [logging.getLogger(name) for name in (None, "lumigrad")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagates) in zip(loggers, before, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagates


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keeps everything that is loaded for all tests out of later garbage collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Lets the last collection reach everything again: nanobind reports what it misses, such as caches, as leaks."""
    gc.unfreeze()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mixes the files of the folders: some tests compute, others wait, and both at once take less time.

    Files with tests that run alone come first: all processes wait for such a test to begin and to end, which takes
    longest while another one is in a test of a minute. The last files are the kernels', which are short, so that all
    processes end at about the same time.
    """
    alone = {item.path for item in items if item.get_closest_marker("alone") is not None}
    folders: dict[str, dict[Path, None]] = {}
    for item in items:
        folders.setdefault(item.path.relative_to(_TESTS).parts[0], {})[item.path] = None
    position = {
        path: (1.0 if folder == "kernels" else 0.85) * (index + 1) / len(files)
        for folder, files in folders.items()
        for index, path in enumerate(files)
    }
    items.sort(key=lambda item: (item.path not in alone, position[item.path]))


def _backends(names: Iterable[str]) -> list[object]:
    available = [name for name in names if name != "gpu" or torch.cuda.is_available()]
    return [pytest.param(name, marks=pytest.mark.gpu) if name == "gpu" else name for name in available]


@pytest.fixture(params=_backends(engines.ENGINES))
def engine(request: pytest.FixtureRequest) -> engines.Engine:
    """The sphere engine on each available back end."""
    return engines.ENGINES[request.param]()


@pytest.fixture(params=_backends(gaussian_engines.ENGINES))
def gaussian_engine(request: pytest.FixtureRequest) -> gaussian_engines.Engine:
    """The Gaussian engine on each available back end and each instruction set of the CPU."""
    return gaussian_engines.ENGINES[request.param]()


@pytest.fixture(params=_backends(mesh_engines.ENGINES))
def mesh_engine(request: pytest.FixtureRequest) -> mesh_engines.Engine:
    """The mesh engine on each available back end and each instruction set of the CPU."""
    return mesh_engines.ENGINES[request.param]()


@pytest.fixture(params=_backends(training_engines.ENGINES))
def training_engine(request: pytest.FixtureRequest) -> training_engines.Engine:
    """The training kernels on each available back end and each instruction set of the CPU."""
    return training_engines.ENGINES[request.param]()
