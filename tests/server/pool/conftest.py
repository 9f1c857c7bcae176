"""Async tests, and pools whose models do as their rows say."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headwise.server.pool.pool import Pool
from headwise.server.settings import Settings
from tests.server.pool.models import OPENER

Start = Callable[..., Awaitable[Pool]]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """An async test runs on an event loop of its own; a pool that has stopped leaves nothing behind on it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        try:
            await asyncio.wait_for(pyfuncitem.obj(**given), 60)
        finally:
            for pool in pyfuncitem.funcargs.get("pools", ()):
                await pool.stop()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())
    return True


@pytest.fixture
def pools() -> list[Pool]:
    """Those that the test has started."""
    return []


@pytest.fixture
def start(pools: list[Pool], tmp_path: Path) -> Start:
    """Start a pool, by default of one worker and a model "m" whose word is "hello"."""

    async def start(models: dict[str, Path] | None = None, **settings: Any) -> Pool:
        if models is None:
            (tmp_path / "m").write_text("hello")
            models = {"m": tmp_path / "m"}
        pools.append(Pool(Settings(**{"threads": 1, "timeout": 30.0, **settings}), opener=OPENER))
        await pools[-1].start(models)
        return pools[-1]

    return start


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate(tmp_path / "gate")


class Gate:
    """A row that keeps its worker busy until the gate is opened."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.row = {"text": "at the gate", "do": f"wait for {path}"}

    def open(self) -> None:
        self._path.touch()


async def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    while not holds():
        await asyncio.sleep(0.005)
