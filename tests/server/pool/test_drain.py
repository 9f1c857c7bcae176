"""A pool that is told to stop finishes what it has accepted."""

from __future__ import annotations

import asyncio

import pytest

from headwise.errors import RequestRefused
from tests.server.pool.conftest import Gate, Run, Start, until

ROW = {"text": "a"}


def test_what_was_accepted_is_answered_and_nothing_more_is_taken(start: Start, run: Run, gate: Gate) -> None:
    pool = start(max_batch=4)
    assert pool.ready

    async def drain() -> None:
        asked = [asyncio.ensure_future(pool.answer("m", None, [row])) for row in [gate.row] + [ROW] * 20]
        stream = pool.stream("m", None, {"text": "a b c"})
        asked.append(asyncio.ensure_future(_pieces(stream)))
        await until(lambda: pool.statistics.of("m", "1").waiting > 15)
        draining = asyncio.ensure_future(pool.drain(30.0))
        await asyncio.sleep(0)
        assert not pool.ready
        for refused in (pool.answer("m", None, [ROW]), anext(pool.stream("m", None, ROW)), pool.load("m")):
            with pytest.raises(RequestRefused, match="the server is stopping") as caught:
                await refused
            assert caught.value.kind == "unavailable"
        assert not draining.done()
        gate.open()
        assert await draining
        answers = await asyncio.gather(*asked)
        assert [answer[0]["text"] for answer in answers[1:-1]] == ["a"] * 20
        assert answers[-1] == ["a ", "b ", "c "]

    run(drain())


async def _pieces(stream: object) -> list[str]:
    return [piece async for piece in stream]  # type: ignore[attr-defined]


def test_an_idle_pool_is_drained_at_once(start: Start, run: Run) -> None:
    assert run(start().drain(0.0))


def test_what_is_not_answered_in_time_is_refused(start: Start, run: Run, gate: Gate) -> None:
    pool = start()

    async def stop() -> None:
        asked = [asyncio.ensure_future(pool.answer("m", None, [row])) for row in (gate.row, ROW)]
        # A stream that waits at the gate too: another might end before the worker has the batch.
        asked.append(asyncio.ensure_future(_pieces(pool.stream("m", None, gate.row))))
        await until(lambda: pool.statistics.of("m", "1").in_flight > 1)
        assert not await pool.drain(0.01)
        await pool.stop()
        for error in await asyncio.gather(*asked, return_exceptions=True):
            assert isinstance(error, RequestRefused)
            assert (error.kind, "the server has stopped" in str(error)) == ("unavailable", True)

    run(stop())
    numbers = pool.statistics.of("m", "1")
    assert (numbers.waiting, numbers.in_flight) == (0, 0)
