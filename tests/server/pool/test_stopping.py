"""A pool that is stopped takes nothing more, and refuses what is not answered."""

from __future__ import annotations

import asyncio

import pytest

from headwise.errors import RequestRefused
from tests.server.pool.conftest import Gate, Start, until

ROW = {"text": "a"}


async def test_a_stopped_pool_takes_nothing_more(start: Start) -> None:
    pool = await start()
    assert pool.ready

    await pool.stop()
    assert not pool.ready
    for refused in (pool.answer("m", None, [ROW]), anext(pool.stream("m", None, ROW)), pool.load("m")):
        with pytest.raises(RequestRefused, match="the server is stopping") as caught:
            await refused
        assert caught.value.kind == "unavailable"


async def _pieces(stream: object) -> list[str]:
    return [piece async for piece in stream]  # type: ignore[attr-defined]


async def test_what_is_not_answered_yet_is_refused(start: Start, gate: Gate) -> None:
    pool = await start()
    asked = [asyncio.ensure_future(pool.answer("m", None, [row])) for row in (gate.row, ROW)]
    # A stream that waits at the gate too: another might end before the worker has the batch.
    asked.append(asyncio.ensure_future(_pieces(pool.stream("m", None, gate.row))))
    await until(lambda: pool.statistics.of("m", "1").in_flight > 1)
    await pool.stop()
    for error in await asyncio.gather(*asked, return_exceptions=True):
        assert isinstance(error, RequestRefused)
        assert (error.kind, "the server has stopped" in str(error)) == ("unavailable", True)
    numbers = pool.statistics.of("m", "1")
    assert (numbers.waiting, numbers.in_flight) == (0, 0)
