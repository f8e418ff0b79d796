"""For people's own test suites: put `pytest_plugins = "tinygrad_tf.checks.pytest_plugin"` into conftest.py.

    def test_my_layer(gradcheck):
        gradcheck(MyLayer(4, 6).double(), tg.randn(2, 3, 4, dtype=tg.float64, requires_grad=True))

The fixtures `gradcheck` and `gradgradcheck` are `tg.gradcheck` and `tg.gradgradcheck` with random numbers that are the
same in each run, and the mode of `--gradcheck-mode`. A failure shows the report instead of a traceback, and the summary
at the end lists each fault with its operation and line.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .. import rng
from .gradcheck import GradcheckError, gradcheck, gradgradcheck

_FAULTS = pytest.StashKey[list[str]]()


def pytest_addoption(parser: Any) -> None:
    group = parser.getgroup("gradcheck", "gradient checks (tinygrad_tf)")
    group.addoption(
        "--gradcheck-mode",
        choices=("full", "fast"),
        default="full",
        help="full: every element (default); fast: random projections, and every element where they disagree",
    )


def pytest_configure(config: Any) -> None:
    config.stash[_FAULTS] = []


@pytest.fixture
def _seeded() -> Iterator[None]:
    """The package's random numbers start from 0 in the test, and go on afterwards as if nothing had been."""
    state = rng.get_rng_state()
    rng.manual_seed(0)
    yield
    rng.manual_seed(0)
    rng.set_rng_state(state)


@pytest.fixture(name="gradcheck")
def _gradcheck(request: Any, _seeded: None) -> Callable[..., bool]:
    """`tg.gradcheck` in the mode of --gradcheck-mode, with random numbers from a fixed seed."""
    return functools.partial(gradcheck, mode=request.config.getoption("--gradcheck-mode"))


@pytest.fixture(name="gradgradcheck")
def _gradgradcheck(request: Any, _seeded: None) -> Callable[..., bool]:
    """`tg.gradgradcheck`, likewise."""
    return functools.partial(gradgradcheck, mode=request.config.getoption("--gradcheck-mode"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Any:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, GradcheckError):
        error = call.excinfo.value
        test = next((e for e in reversed(call.excinfo.traceback) if e.path == item.path), call.excinfo.traceback[0])
        report.longrepr = f"{item.path}:{test.lineno + 1}: {str(test.statement).strip()}\n\n{error}"
        where = f", in {error.operation} at {error.line}" if error.operation else ""
        item.config.stash[_FAULTS].append(f"{item.nodeid}: {error.diagnosis or 'no gradient to check'}{where}")
    return report


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    faults = config.stash[_FAULTS]
    if faults:
        terminalreporter.section("gradcheck")
        for line in faults:
            terminalreporter.line(line)
