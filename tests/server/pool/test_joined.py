"""Rows of a model that answers them side by side: each joins and leaves at any step."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from headwise.errors import RequestRefused
from headwise.server.pool.pool import Pool
from tests.server.pool.conftest import Start, until

LONG = {"text": "word " * 4_000, "do": "sleep 0.005"}


@pytest.fixture
def joining(start: Start, tmp_path: Path) -> Any:
    """Start a pool of one worker and a model that joins rows."""

    def start_joining(**settings: Any) -> Pool:
        (tmp_path / "m").write_text("joining")
        return start({"m": tmp_path / "m"}, **settings)

    return start_joining


async def ask(pool: Pool, *texts: str, do: str = "", **how: Any) -> list[Any]:
    return await pool.answer("m", None, [{"text": text, "do": do} for text in texts], **how)


async def begin_long(pool: Pool) -> asyncio.Future[Any]:
    """A row that goes on for as long as it is not cancelled."""
    asked = asyncio.ensure_future(pool.answer("m", None, [LONG]))
    await until(lambda: pool.statistics.of("m", "1").in_flight == 1)
    return asked


async def test_a_short_row_joins_a_long_one_and_leaves_before_it(joining: Any) -> None:
    pool = await joining()
    long = await begin_long(pool)
    found = [*await ask(pool, "a b"), *await ask(pool, "c", "d e f")]
    assert not long.done()
    long.cancel()
    await asyncio.wait([long])
    first, second, third = found
    assert [first["text"], second["text"], third["text"]] == ["a b", "c", "d e f"]
    assert all(LONG["text"] in each["batch"] for each in (first, second, third))


async def test_a_client_that_goes_away_frees_its_place(joining: Any) -> None:
    pool = await joining(max_batch=1)
    long = await begin_long(pool)
    waits = asyncio.ensure_future(ask(pool, "a"))
    await until(lambda: pool.statistics.of("m", "1").waiting == 1)
    long.cancel()
    [answer] = await waits
    assert answer["batch"] == ["a"]
    await until(lambda: pool.statistics.of("m", "1").in_flight == 0)
    assert pool.statistics.of("m", "1").outcomes == {"ok": 1, "cancelled": 1}


async def test_only_the_bad_rows_fail(joining: Any) -> None:
    pool = await joining()
    tasks = [ask(pool, "a b c", do=do) for do in ("", "raise", "be unreadable", "refuse", "")]
    good, raised, unreadable, refused, other = [each[0] for each in await asyncio.gather(*tasks)]
    assert good["text"] == other["text"] == "a b c"
    assert [each.kind for each in (raised, unreadable, refused)] == ["failed", "bad_input", "bad_input"]
    assert "secret" not in str(raised)


async def test_rows_of_a_worker_that_dies_are_refused_and_others_are_answered(joining: Any) -> None:
    pool = await joining()
    long = await begin_long(pool)
    with pytest.raises(RequestRefused, match="died"):
        await ask(pool, "a", do="die")
    with pytest.raises(RequestRefused, match="died"):
        await long
    await until(lambda: pool.ready)
    assert (await ask(pool, "a"))[0]["text"] == "a"


async def test_an_explanation_is_given_between_two_steps(joining: Any) -> None:
    pool = await joining()
    long = await begin_long(pool)
    assert (await pool.explain("m", None, {"text": "a"}))["calls"] == 1  # type: ignore[index]
    assert not long.done()
    long.cancel()
    await asyncio.wait([long])
