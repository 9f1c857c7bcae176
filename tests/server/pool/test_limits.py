"""What a pool does not take, and what it takes back: a full queue, lost patience, a caller who is gone."""

from __future__ import annotations

import asyncio

import pytest

from headwise.errors import RequestRefused
from tests.server.pool.conftest import Gate, Start, until

ROW = {"text": "a"}


async def test_a_full_queue_is_busy_and_says_when_to_come_again(start: Start, gate: Gate) -> None:
    pool = await start(max_queue=3)
    numbers = pool.statistics.of("m", "1")
    first = asyncio.ensure_future(pool.answer("m", None, [gate.row]))
    await until(lambda: numbers.in_flight == 1)
    queued = asyncio.ensure_future(pool.answer("m", None, [ROW] * 2))
    await until(lambda: numbers.waiting == 2)
    full = "the queue of 'm' is full: 2 of at most 3 rows are waiting, and this request has"
    for rows in (2, 3):
        with pytest.raises(RequestRefused, match=f"{full} {rows}") as caught:
            await pool.answer("m", None, [ROW] * rows)
        assert caught.value.kind == "busy"
        assert 1.0 <= (caught.value.retry_after or 0) <= 60.0
    last = asyncio.ensure_future(pool.answer("m", None, [ROW]))
    await until(lambda: numbers.waiting == 3)
    with pytest.raises(RequestRefused, match="3 of at most 3"):
        await anext(pool.stream("m", None, ROW))
    with pytest.raises(RequestRefused, match="3 of at most 3"):
        await pool.explain("m", None, ROW)
    gate.open()
    assert len(await queued + await last + await first) == 4
    assert (await pool.answer("m", None, [ROW]))[0]["text"] == "a"
    assert numbers.outcomes == {"ok": 5, "busy": 7}


async def test_more_rows_than_the_queue_has_room_for_are_too_large(start: Start) -> None:
    with pytest.raises(RequestRefused, match=r"at most 3 rows in a request. Received: 4") as caught:
        await (await start(max_queue=3)).answer("m", None, [ROW] * 4)
    assert caught.value.kind == "too_large"


async def test_after_its_time_a_request_is_refused_and_leaves_the_queue(start: Start, gate: Gate) -> None:
    pool = await start()
    numbers = pool.statistics.of("m", "1")
    first = asyncio.ensure_future(pool.answer("m", None, [gate.row]))
    await until(lambda: numbers.in_flight == 1)
    with pytest.raises(RequestRefused, match=r"not answered within 0\.05 seconds") as caught:
        await pool.answer("m", None, [ROW] * 3, timeout=0.05)
    assert caught.value.kind == "timeout"
    assert numbers.waiting == 0
    gate.open()
    await first
    assert numbers.outcomes == {"timeout": 3, "ok": 1}


async def test_a_row_that_a_worker_has_when_its_time_is_over_is_dropped_when_it_is_answered(
    start: Start, gate: Gate
) -> None:
    pool = await start()
    numbers = pool.statistics.of("m", "1")
    with pytest.raises(RequestRefused, match="not answered within"):
        await pool.answer("m", None, [gate.row], timeout=0.05)
    assert numbers.in_flight == 1
    gate.open()
    assert (await pool.answer("m", None, [ROW]))[0]["text"] == "a"
    assert numbers.in_flight == 0
    assert numbers.outcomes == {"timeout": 1, "ok": 1}


async def test_a_timeout_can_only_be_shorter_than_the_server_has_it(start: Start, gate: Gate) -> None:
    pool = await start(timeout=0.3)
    with pytest.raises(RequestRefused, match=r"within 0.3 seconds"):
        await pool.answer("m", None, [gate.row], timeout=1000.0)
    gate.open()


async def test_a_caller_who_is_gone_takes_its_rows_out_of_the_queue(start: Start, gate: Gate) -> None:
    pool = await start()
    numbers = pool.statistics.of("m", "1")
    first = asyncio.ensure_future(pool.answer("m", None, [gate.row]))
    await until(lambda: numbers.in_flight == 1)
    leaving = [asyncio.ensure_future(pool.answer("m", None, [ROW, ROW])) for _ in range(3)]
    await until(lambda: numbers.waiting == 6)
    leaving[1].cancel()
    await until(lambda: numbers.waiting == 4)
    gate.open()
    assert len(await first + await leaving[0] + await leaving[2]) == 5
    assert leaving[1].cancelled()
    assert numbers.outcomes == {"cancelled": 2, "ok": 5}
    assert numbers.batch_rows.total == 5
