"""Workers that die are replaced, and take only what they had with them; none outlives its pool."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwise.errors import RequestRefused
from headwise.server.pool import crew
from headwise.server.pool.pool import Pool
from headwise.server.settings import Settings
from tests.server.pool.conftest import Gate, Start, until
from tests.server.pool.models import OPENER

OTHER = {"text": "another"}


def is_there(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


async def pids(pool: Pool) -> set[int]:
    """Of all workers, once each has loaded its model."""
    await until(lambda: pool.statistics.workers == pool.settings.workers)
    answers = await pool.answer("m", None, [OTHER] * pool.settings.workers)
    return {answer["pid"] for answer in answers}


@pytest.mark.parametrize("workers", [1, 2])
async def test_only_what_a_dead_worker_had_fails_and_it_is_replaced(start: Start, gate: Gate, workers: int) -> None:
    pool = await start(workers=workers)
    before = await pids(pool)
    dying = [asyncio.ensure_future(pool.answer("m", None, [gate.row])) for _ in range(workers)]
    await until(lambda: pool.statistics.of("m", "1").in_flight == workers)
    queued = [asyncio.ensure_future(pool.answer("m", None, [OTHER])) for _ in range(5)]
    await asyncio.sleep(0)
    os.kill(min(before), signal.SIGKILL)
    done, pending = await asyncio.wait(dying, return_when=asyncio.FIRST_COMPLETED)
    (error,) = [asking.exception() for asking in done]
    assert isinstance(error, RequestRefused)
    assert (error.kind, "died while it computed this request" in str(error)) == ("unavailable", True)
    assert error.retry_after == 1.0
    assert len(pending) == workers - 1
    gate.open()
    assert [(await asking)[0]["text"] for asking in queued] == ["another"] * 5
    assert [(await asking)[0]["text"] for asking in pending] == ["at the gate"] * (workers - 1)
    after = await pids(pool)
    assert min(before) not in after
    assert len(after) == workers
    assert len(after & before) == workers - 1
    assert pool.ready
    assert pool.statistics.restarts == 1
    assert pool.statistics.of("m", "1").outcomes["unavailable"] == 1


async def test_a_worker_that_cannot_be_started_again_and_again_is_given_up(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(crew, "_TRIES", 2)
    pool = await start()
    (tmp_path / "m").write_text("damaged")

    with pytest.raises(RequestRefused):
        await pool.answer("m", None, [{"text": "a", "do": "die"}])
    assert not pool.ready
    assert pool.live
    with pytest.raises(RequestRefused, match=r"no worker is left: it could not load m: .* is damaged"):
        await pool.answer("m", None, [OTHER])  # it waited for a worker
    assert not pool.live
    with pytest.raises(RequestRefused, match="no worker is left") as caught:
        await pool.answer("m", None, [OTHER])
    assert caught.value.kind == "unavailable"
    assert not pool.models()[0].ready


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        ("damaged", "bad_input", "m is damaged"),
        ("surprising", "bad_input", "m cannot be loaded: KeyError: 'surprise'"),
        ("deadly", "unavailable", "the worker process ended while it loaded the model: it was ended by SIGKILL"),
    ],
)
async def test_a_model_that_cannot_be_loaded_is_told_to_who_starts(
    start: Start, tmp_path: Path, text: str, kind: str, says: str
) -> None:
    (tmp_path / "m").write_text(text)
    with pytest.raises(RequestRefused) as caught:
        await start({"m": tmp_path / "m"}, workers=2)
    assert caught.value.kind == kind
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


async def test_a_worker_that_says_nothing_for_long_is_replaced(
    start: Start, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crew, "_PATIENCE", 0.1)
    pool = await start(timeout=0.1)
    with pytest.raises(RequestRefused, match=r"not answered within 0\.1 seconds"):
        await pool.answer("m", None, [gate.row])
    await until(lambda: pool.statistics.restarts == 1)
    await until(lambda: pool.ready)


async def test_workers_heed_no_signals_of_a_terminal(start: Start) -> None:
    pool = await start()
    before = await pids(pool)
    for pid in before:
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert await pids(pool) == before


async def test_no_worker_is_left_when_a_pool_has_stopped(start: Start) -> None:
    pool = await start(workers=2)
    there = await pids(pool)
    await pool.stop()
    assert not any(map(is_there, there))


_ALONE = f"""
import asyncio, sys
from pathlib import Path
from headwise.server.pool.pool import Pool
from headwise.server.settings import Settings

async def serve():
    pool = Pool(Settings(workers=2, threads=1), opener="{OPENER}")
    await pool.start({{"m": Path(sys.argv[1])}})
    print(*(answer["pid"] for answer in await pool.answer("m", None, [{{"text": "a"}}] * 2)), flush=True)
    await pool.answer("m", None, [{{"text": "a", "do": "sleep 600"}}])

asyncio.run(serve())
"""


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_no_worker_is_left_when_its_pool_is_killed(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("hello")
    with subprocess.Popen(
        [sys.executable, "-c", _ALONE, str(tmp_path / "m")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
        text=True,
    ) as process:
        workers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(workers) == 2
        process.kill()
    until = time.monotonic() + 20
    while any(map(is_there, workers)) and time.monotonic() < until:  # one of them is busy for ten minutes
        time.sleep(0.01)
    assert not any(map(is_there, workers))


async def test_a_pool_that_was_not_started_is_not_ready() -> None:
    pool = Pool(Settings(), opener=OPENER)
    assert not pool.ready
    with pytest.raises(RequestRefused, match="not ready yet"):
        await pool.answer("m", None, [OTHER])
    await pool.stop()
