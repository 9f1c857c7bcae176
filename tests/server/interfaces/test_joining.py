"""Texts that a server writes side by side are those of `predict`."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headwise import tasks
from headwise.server.pool.pool import Pool
from headwise.server.settings import Settings
from tests.tasks.problems import WORDS


@pytest.mark.parametrize(
    "name",
    ["summarize", *(pytest.param(name, marks=pytest.mark.slow) for name in ("causal", "translate", "reply"))],
)  # summarize samples
def test_sixteen_requests_at_once_are_answered_as_by_predict(run_of: Callable[[str], Path], name: str) -> None:
    task: Any = tasks.load(run_of(name))
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 9))) for _ in range(16)]

    async def ask() -> list[Any]:
        pool = Pool(Settings(threads=1, max_batch=12))
        await pool.start({"m": run_of(name)})
        try:
            assert pool.find("m").description.joins
            found = await asyncio.gather(*(pool.answer("m", None, [{"text": text}]) for text in texts))
        finally:
            await pool.stop()
        return [each[0] for each in found]

    for text, found in zip(texts, asyncio.run(ask()), strict=True):
        (expected,) = task.predict([text])
        assert found.pop(task.writes) == expected[task.writes]
        assert list(found.values()) == pytest.approx(
            [value for column, value in expected.items() if column != task.writes], rel=1e-4
        )
