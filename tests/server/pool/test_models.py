"""Models come and go while requests are answered, and none is lost."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headwise.errors import RequestRefused
from headwise.server.pool.pool import Pool
from headwise.server.pool.versions import versions
from tests.server.pool.conftest import Gate, Start, until

ROW = {"text": "a"}


async def word(pool: Pool, name: str = "m", version: str | None = None) -> str:
    return (await pool.answer(name, version, [ROW]))[0]["word"]


async def test_a_model_that_is_loaded_anew_takes_over_without_a_request_lost(start: Start, tmp_path: Path) -> None:
    pool = await start(workers=2)
    words, done = [], False

    async def ask() -> None:
        while not done:
            words.append(await word(pool))

    clients = [asyncio.ensure_future(ask()) for _ in range(8)]
    for new in ("hello", *"abc"):
        (tmp_path / "m").write_text(new)
        await pool.load("m")
        assert await word(pool) == new
    done = True
    await asyncio.gather(*clients)
    assert [new for at, new in enumerate(words) if new not in words[:at]] == ["hello", "a", "b", "c"]
    assert pool.statistics.of("m", "1").outcomes == {"ok": len(words) + 4}
    assert (pool.statistics.loads, pool.statistics.failed_loads) == (5, 0)
    # A worker lets go of the old ones when their last rows are answered, which it may be about to do.
    while (await pool.answer("m", None, [{"text": "a", "do": "count models"}]))[0]["models"] != 1:
        pass


async def test_the_thread_that_loaded_a_model_has_ended(start: Start) -> None:
    """Else the threads that OpenMP keeps for it slow down those that answer."""
    pool = await start()
    ask = {"text": "a", "do": "tell of the loading thread"}
    said = [(await pool.answer("m", None, [ask]))[0]["loading thread"] for _ in range(50)]
    assert not said[-1], "of the first the thread may still be telling the pool"


async def test_rows_that_wait_are_answered_by_the_model_that_they_were_meant_for(
    start: Start, tmp_path: Path, gate: Gate
) -> None:
    pool = await start()
    first = asyncio.ensure_future(pool.answer("m", None, [gate.row]))
    await until(lambda: pool.statistics.of("m", "1").in_flight == 1)
    early = asyncio.ensure_future(word(pool))
    await asyncio.sleep(0)
    (tmp_path / "m").write_text("new")
    await pool.load("m")
    late = asyncio.ensure_future(word(pool))
    await asyncio.sleep(0)
    assert pool.statistics.of("m", "1").waiting == 2
    gate.open()
    assert [await early, await late] == ["hello", "new"]
    assert (await first)[0]["word"] == "hello"


@pytest.mark.parametrize("text", ["damaged", "deadly"])
async def test_a_load_that_fails_leaves_the_old_model(start: Start, tmp_path: Path, text: str) -> None:
    pool = await start()
    (tmp_path / "new").write_text(text)
    with pytest.raises(RequestRefused):
        await pool.load("m", tmp_path / "new")
    assert await word(pool) == "hello"
    with pytest.raises(RequestRefused):
        await pool.load("other", tmp_path / "new")
    assert [served.name for served in pool.models()] == ["m"]
    assert pool.statistics.failed_loads == 2
    assert list(pool.statistics.models) == [("m", "1")]
    await until(lambda: pool.ready)
    await pool.load("m")  # from where it was loaded last, not from where it could not be
    assert await word(pool) == "hello"


async def test_a_replaced_worker_has_the_models_that_were_loaded_since(start: Start, tmp_path: Path) -> None:
    pool = await start()
    (tmp_path / "other").write_text("bye")
    await pool.load("other", tmp_path / "other")
    with pytest.raises(RequestRefused, match="died"):
        await pool.answer("m", None, [{"text": "a", "do": "die"}])
    assert await word(pool, "other") == "bye"
    assert await word(pool) == "hello"


async def test_a_worker_that_comes_while_a_model_is_loaded_has_it_too(start: Start, tmp_path: Path, gate: Gate) -> None:
    pool = await start(workers=2)
    (tmp_path / "other").write_text(gate.row["do"])

    with pytest.raises(RequestRefused, match="died"):
        await pool.answer("m", None, [{"text": "a", "do": "die"}])
    loading = asyncio.ensure_future(pool.load("other", tmp_path / "other"))  # in the one that is left
    await until(lambda: pool.statistics.workers == 2)
    gate.open()
    await loading
    await until(lambda: pool.statistics.workers == 2)
    answers = await pool.answer("other", None, [ROW] * 2)
    assert len({answer["pid"] for answer in answers}) == 2


async def test_unload_waits_for_what_was_accepted_and_takes_nothing_more(start: Start, gate: Gate) -> None:
    pool = await start()
    first = asyncio.ensure_future(pool.answer("m", None, [gate.row]))
    await until(lambda: pool.statistics.of("m", "1").in_flight == 1)
    second = asyncio.ensure_future(word(pool))
    await asyncio.sleep(0)
    unloading = asyncio.ensure_future(pool.unload("m"))
    await until(lambda: not pool.models())
    with pytest.raises(RequestRefused, match=r"unknown model 'm'\. Loaded: none") as caught:
        await word(pool)
    assert caught.value.kind == "not_found"
    assert not unloading.done()
    gate.open()
    await unloading
    assert (await first)[0]["word"] == await second == "hello"
    assert pool.statistics.models == {}
    with pytest.raises(RequestRefused, match="unknown model 'm'"):
        await pool.unload("m")
    await pool.load("m")
    assert await word(pool) == "hello"


async def test_a_model_that_was_never_there_cannot_be_loaded_without_a_path(start: Start) -> None:
    with pytest.raises(RequestRefused, match="unknown model 'other'") as caught:
        await (await start()).load("other")
    assert caught.value.kind == "not_found"


async def test_folders_with_numbers_are_versions_and_the_newest_is_the_default(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "versions"
    for number in ("2", "9", "10"):
        (folder / number).mkdir(parents=True)
        (folder / number / "word").write_text(f"version {number}")
    pool = await start({"v": folder})
    assert [(served.name, served.version, served.ready) for served in pool.models()] == [
        ("v", "2", True),
        ("v", "9", True),
        ("v", "10", True),
    ]
    assert pool.find("v").version == "10"
    assert await word(pool, "v") == "version 10"
    assert await word(pool, "v", "9") == "version 9"
    with pytest.raises(RequestRefused, match=r"the model 'v' has no version '3'. Loaded: 2, 9, 10") as caught:
        await word(pool, "v", "3")
    assert caught.value.kind == "not_found"
    (folder / "2" / "word").unlink()
    (folder / "2").rmdir()
    await pool.load("v")
    assert [served.version for served in pool.models()] == ["9", "10"]
    assert set(pool.statistics.models) == {("v", "9"), ("v", "10")}


def test_what_is_not_a_folder_of_versions_is_version_1(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    assert versions(tmp_path) == {"7": tmp_path / "7"}
    (tmp_path / ".hidden").touch()
    (tmp_path / "tensorboard").mkdir()
    assert versions(tmp_path) == {"7": tmp_path / "7"}
    (tmp_path / "config.yaml").touch()
    assert versions(tmp_path) == {"1": tmp_path}
    assert versions(tmp_path / "config.yaml") == {"1": tmp_path / "config.yaml"}
    assert versions(tmp_path / "nothing") == {"1": tmp_path / "nothing"}
