"""Streams and explanations go through the same workers, beside batches."""

from __future__ import annotations

import asyncio

import pytest

from headwise.errors import RequestRefused
from tests.server.pool.conftest import Gate, Start, until

ROW = {"text": "a"}


async def test_pieces_come_in_order(start: Start) -> None:
    pool = await start()

    async def read(text: str) -> list[str]:
        return [piece async for piece in pool.stream("m", None, {"text": text})]

    assert (await asyncio.gather(*(read(f"this is {number}") for number in range(20)))) == [
        ["this ", "is ", f"{number} "] for number in range(20)
    ]
    assert pool.statistics.of("m", "1").outcomes == {"ok": 20}
    assert pool.statistics.of("m", "1").in_flight == 0


async def test_batches_are_answered_between_the_pieces_of_a_stream(start: Start) -> None:
    pool = await start()
    stream = pool.stream("m", None, {"text": "word " * 4_000, "do": "sleep 0.02"})
    assert await anext(stream) == "word "
    assert (await pool.answer("m", None, [ROW]))[0]["text"] == "a"
    assert await pool.explain("m", None, ROW) == {"calls": 1, "text": "a"}
    assert await anext(stream) == "word "
    await stream.aclose()  # type: ignore[attr-defined]
    await until(lambda: pool.statistics.of("m", "1").in_flight == 0)
    assert pool.statistics.of("m", "1").outcomes == {"ok": 2, "cancelled": 1}


async def test_an_explanation_waits_its_turn_among_rows(start: Start, gate: Gate) -> None:
    pool = await start()
    ended = []

    async def ask(what: str) -> None:
        await (pool.explain("m", None, ROW) if what == "explain" else pool.answer("m", None, [ROW]))
        ended.append(what)

    first = asyncio.ensure_future(pool.answer("m", None, [gate.row]))
    await until(lambda: pool.statistics.of("m", "1").in_flight == 1)
    asked = [asyncio.ensure_future(ask(what)) for what in ("explain", "a", "b", "explain", "c")]
    await until(lambda: pool.statistics.of("m", "1").waiting == 5)
    gate.open()
    await asyncio.gather(first, *asked)
    assert ended == ["explain", "a", "b", "c", "explain"]  # rows share a batch past the second explanation


async def test_a_stream_that_fails_says_so_after_its_pieces(start: Start) -> None:
    pool = await start(max_tokens=3)

    async def read(row: dict[str, str]) -> tuple[int, RequestRefused]:
        pieces = 0
        try:
            async for _ in pool.stream("m", None, row):
                pieces += 1
        except RequestRefused as error:
            return pieces, error
        raise AssertionError

    for row, number, kind, says in (
        ({"text": "a b", "do": "raise"}, 1, "failed", "the model failed on this row; see the server's log"),
        ({"text": "a b c d"}, 0, "too_large", "expected at most 3 tokens. Received: 4 tokens"),
        ({"text": "a b", "do": "die"}, 1, "unavailable", "the worker process died while it computed this request"),
    ):
        pieces, error = await read(row)
        assert (pieces, error.kind) == (number, kind)
        assert str(error).startswith(says)
    with pytest.raises(RequestRefused, match="unknown model 'x'"):
        await anext(pool.stream("x", None, ROW))


async def test_a_stream_that_takes_too_long_is_ended(start: Start, gate: Gate) -> None:
    pool = await start()
    with pytest.raises(RequestRefused, match="not answered within") as caught:
        async for _ in pool.stream("m", None, gate.row, timeout=0.1):
            pass
    assert caught.value.kind == "timeout"
    gate.open()
    await until(lambda: pool.statistics.of("m", "1").in_flight == 0)
    assert pool.statistics.of("m", "1").outcomes == {"timeout": 1}


async def test_an_explanation_comes_as_statistics_or_as_a_page(start: Start) -> None:
    pool = await start(max_tokens=3)
    assert await pool.explain("m", None, ROW) == {"calls": 1, "text": "a"}
    assert await pool.explain("m", None, ROW, page=True) == "<p>a</p>"
    assert await pool.explain("m", None, ROW, rows=[0, -1]) == {"answer": ROW, "rows": [0, -1]}
    for row, kind in (({"text": "a", "do": "raise"}, "failed"), ({"text": "a b c d"}, "too_large")):
        with pytest.raises(RequestRefused) as caught:
            await pool.explain("m", None, row)
        assert caught.value.kind == kind
