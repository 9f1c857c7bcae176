"""Limits of time: what does not end is interrupted, and its line is known."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from headwise.doctor.limits import TookTooLong, can_interrupt, hangs, out_of_memory, time_limit
from headwise.doctor.lines import is_users
from headwise.errors import DoctorError

LOOP = """
def loop():
    while True:
        pass

def deaf(end):
    try:
        while True:
            pass
    except BaseException:
        pass
    while True:
        pass

def wait(sleep):
    sleep(1000)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[..., None]]:
    file = tmp_path / "loops.py"
    file.write_text(LOOP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Callable[..., None]] = {}
    exec(compile(LOOP, str(file), "exec"), names)
    return names


@pytest.fixture(autouse=True)
def _timer() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [("loop", (), 4), ("wait", (time.sleep,), 16), ("deaf", (0,), 13)],
)
def test_what_does_not_end_is_interrupted(
    code: dict[str, Callable[..., None]], name: str, arguments: tuple[object, ...], line: int
) -> None:
    with (
        pytest.raises(TookTooLong, match=r"it did not finish within 0\.2 seconds at loops\.py") as caught,
        time_limit(0.2),
    ):
        code[name](*arguments)
    where = caught.value.where
    assert abs(where.line - line) <= 1 or name == "deaf"  # a loop has two lines
    finding = hangs(caught.value.seconds, where, "the constructor of A")
    assert (finding.name, finding.severity, finding.where) == ("hangs", "bug", where)
    assert finding.evidence == "the constructor of A did not finish within 0.2 seconds"


def test_what_ends_is_left_alone() -> None:
    with time_limit(100):
        result = sum(range(10))
    assert result == 45
    with time_limit(None):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(KeyError), time_limit(100):
        raise KeyError


def test_the_inner_limit_may_end_first(code: dict[str, Callable[..., None]]) -> None:
    with time_limit(100):
        with pytest.raises(TookTooLong), time_limit(0.1):
            code["loop"]()
        rest, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 50 < rest < 100


def test_the_outer_limit_may_end_first(code: dict[str, Callable[..., None]]) -> None:
    def work() -> None:
        try:
            with time_limit(100):
                code["loop"]()
        except TookTooLong:
            pytest.fail("it was not the inner limit that ended")

    with pytest.raises(TookTooLong) as caught, time_limit(0.1):
        work()
    assert caught.value.seconds == 0.1


def test_somebody_elses_alarm_still_rings(code: dict[str, Callable[..., None]]) -> None:
    """As pytest-timeout uses it."""

    class RingError(Exception):
        pass

    def ring(*_: object) -> None:
        raise RingError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(RingError), time_limit(100):
            code["loop"]()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_other_threads_are_not_limited() -> None:
    seen = []

    def work() -> None:
        with time_limit(0.001):
            seen.append(can_interrupt())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_limit_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(DoctorError, match="seconds must be a finite number above 0"), time_limit(seconds):
        pass


def test_whose_line_it_is() -> None:
    assert is_users(__file__)
    assert is_users(pytest.__file__)  # of a library: it may hold the model
    assert not is_users(torch.__file__)
    assert not is_users(threading.__file__)
    assert not is_users("<string>")


def test_errors_that_mean_no_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(10**15)
    assert out_of_memory(caught.value)
    assert out_of_memory(MemoryError())
    assert not out_of_memory(RuntimeError("shapes"))
