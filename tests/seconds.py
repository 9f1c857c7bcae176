"""A plugin of pytest: the CPU seconds of each test file, with those of processes that it started and awaited.

python -m pytest -p tests.seconds --seconds FILE    # adds lines of "test file,seconds" to FILE
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

STARTED = pytest.StashKey[float]()


class Sums:
    """Adds up what the reports of all workers say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            file = report.nodeid.partition("::")[0]
            self.seconds[file] += next(value for name, value in report.user_properties if name == "seconds")

    def pytest_sessionfinish(self) -> None:
        with self.path.open("a") as file:
            file.writelines(f"{name},{seconds:.2f}\n" for name, seconds in sorted(self.seconds.items()))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=Path, help="a file to add the CPU seconds of each test file to")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.seconds is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Sums(config.option.seconds))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    item.stash[STARTED] = sum(os.times()[:4])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> None:
    if call.when == "teardown":  # the report takes it from a worker to `Sums`
        item.user_properties.append(("seconds", sum(os.times()[:4]) - item.stash[STARTED]))
