"""An event loop, and pools on it whose models do as their rows say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from headwise.server.pool.pool import Pool
from headwise.server.settings import Settings
from tests.server.pool.models import OPENER

Result = TypeVar("Result")
Run = Callable[[Awaitable[Any]], Any]
Start = Callable[..., Pool]


@pytest.fixture
def run() -> Iterator[Run]:
    """Run something on the test's event loop, to its end."""
    loop = asyncio.new_event_loop()

    def run(coroutine: Coroutine[Any, Any, Result]) -> Result:
        return loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    yield run
    assert not asyncio.all_tasks(loop)  # a pool that has stopped leaves nothing behind
    loop.close()


@pytest.fixture
def start(run: Run, tmp_path: Path) -> Iterator[Start]:
    """Start a pool, by default of one worker and a model "m" whose word is "hello"."""
    pools = []

    def start(models: dict[str, Path] | None = None, **settings: Any) -> Pool:
        if models is None:
            (tmp_path / "m").write_text("hello")
            models = {"m": tmp_path / "m"}

        async def made() -> Pool:
            pool = Pool(Settings(**{"threads": 1, "timeout": 30.0, **settings}), opener=OPENER)
            pools.append(pool)
            await pool.start(models)
            return pool

        return run(made())

    yield start
    for pool in pools:
        run(pool.stop())


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
