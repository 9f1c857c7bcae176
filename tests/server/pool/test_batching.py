"""Rows of different requests share batches, and get their own answers."""

from __future__ import annotations

import asyncio
from typing import Any

from headwise.server.pool.pool import Pool
from tests.server.pool.conftest import Gate, Start, until


def rows(*texts: str) -> list[dict[str, Any]]:
    return [{"text": text} for text in texts]


async def behind(gate: Gate, pool: Pool, *texts: str) -> list[list[str]]:
    """The batches in which single rows are answered that come, one after another, while the worker is busy."""
    first = asyncio.ensure_future(pool.answer("m", None, [gate.row]))
    await until(lambda: pool.statistics.of("m", "1").in_flight == 1)
    others = []
    for text in texts:
        others.append(asyncio.ensure_future(pool.answer("m", None, rows(text))))
        await asyncio.sleep(0)
    gate.open()
    await first
    batches: list[list[str]] = []
    for text, answers in zip(texts, await asyncio.gather(*others), strict=True):
        assert answers[0]["text"] == text
        batches += [] if answers[0]["batch"] in batches else [answers[0]["batch"]]
    return batches


async def test_what_comes_while_the_worker_is_busy_is_the_next_batch(start: Start, gate: Gate) -> None:
    pool = await start(max_batch=8)
    assert await behind(gate, pool, "a", "b", "c") == [["a", "b", "c"]]
    numbers = pool.statistics.of("m", "1")
    assert (numbers.batch_rows.count, numbers.batch_rows.total) == (2, 4.0)
    assert (numbers.waiting, numbers.in_flight, numbers.outcomes) == (0, 0, {"ok": 4})


async def test_a_batch_has_at_most_max_batch_rows(start: Start, gate: Gate) -> None:
    batches = await behind(gate, await start(max_batch=3), *"abcdefgh")
    assert batches == [["a", "b", "c"], ["d", "e", "f"], ["g", "h"]]


async def test_rows_of_about_one_length_share_a_batch_and_the_oldest_is_in_the_next(start: Start, gate: Gate) -> None:
    long, short = [letter * 1000 for letter in "abc"], list("xyz")
    came = [long[0], short[0], long[1], short[1], long[2], short[2]]
    batches = await behind(gate, await start(max_batch=8), *came)
    assert [sorted(batch) for batch in batches] == [long, short]


async def test_200_rows_at_once_are_not_mixed_up(start: Start) -> None:
    pool = await start(workers=2)

    async def ask(number: int) -> None:
        texts = [f"{number} {place} " + "word " * (number % 7) for place in range(1 + number % 3)]
        answers = await pool.answer("m", None, rows(*texts))
        assert [answer["text"] for answer in answers] == texts

    await asyncio.gather(*(ask(number) for number in range(200)))
    numbers = pool.statistics.of("m", "1")
    assert numbers.outcomes == {"ok": 399}
    assert numbers.batch_rows.total == 399
    assert numbers.batch_rows.count < 100


async def test_rows_of_one_request_are_shared_out_among_idle_workers(start: Start) -> None:
    pool = await start(workers=2)
    answers = await pool.answer("m", None, rows("a", "b", "c", "d"))
    assert sorted(map(tuple, {tuple(answer["batch"]) for answer in answers})) == [("a", "b"), ("c", "d")]
    assert len({answer["pid"] for answer in answers}) == 2


async def test_a_lone_client_never_waits_for_others(start: Start) -> None:
    pool = await start(max_delay_ms=10_000.0, timeout=5.0)  # whoever waits once is too late
    for _ in range(3):
        await pool.answer("m", None, rows("a"))


async def test_an_idle_worker_waits_for_as_many_rows_as_there_were_before(start: Start) -> None:
    pool = await start(max_delay_ms=10_000.0, timeout=5.0)

    async def ask(text: str, pause: float) -> list[str]:
        await asyncio.sleep(pause)
        return (await pool.answer("m", None, rows(text)))[0]["batch"]

    async def ask_four(pause: float) -> list[list[str]]:
        return await asyncio.gather(*(ask(text, at * pause) for at, text in enumerate("abcd")))

    assert await ask_four(pause=0) == [["a", "b", "c", "d"]] * 4
    assert await ask_four(pause=0.01) == [["a", "b", "c", "d"]] * 4


async def test_a_lone_client_has_all_cores_and_several_share_them(start: Start) -> None:
    pool = await start(threads=None, workers=2)
    (answer,) = await pool.answer("m", None, rows("a"))
    assert answer["threads"] == pool.settings.count_threads(1)
    answers = await pool.answer("m", None, rows("a", "b", "c", "d"))
    assert {each["threads"] for each in answers} == {pool.settings.worker_threads}


async def test_no_rows_get_no_answers(start: Start) -> None:
    assert await (await start()).answer("m", None, []) == []
