"""Limits of time: what does not end is interrupted, and its line is known."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator

import pytest
import torch

from headwise.doctor.limits import TookTooLong, can_interrupt, hangs, out_of_memory, time_limit
from headwise.doctor.lines import is_users
from headwise.errors import DoctorError


def loop() -> None:
    while True:
        pass


def wait() -> None:
    time.sleep(1000)


def deaf() -> None:
    try:
        wait()
    except BaseException:
        while True:
            pass


@pytest.fixture(autouse=True)
def _timer() -> Iterator[None]:
    before = signal.getsignal(signal.SIGALRM)
    yield
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


@pytest.mark.parametrize(("code", "line"), [(loop, ""), (wait, "time.sleep(1000)"), (deaf, "")])
def test_what_does_not_end_is_interrupted(code: Callable[[], None], line: str) -> None:
    with pytest.raises(TookTooLong, match=r"within 0\.2 seconds at .*test_limits\.py") as caught, time_limit(0.2):
        code()
    where = caught.value.where
    assert line in where.code
    finding = hangs(caught.value.seconds, where, "the constructor of A")
    assert (finding.name, finding.severity, finding.where) == ("hangs", "bug", where)
    assert finding.evidence == "the constructor of A did not finish within 0.2 seconds"


def test_what_ends_is_left_alone() -> None:
    with time_limit(None):
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with pytest.raises(KeyError), time_limit(100):
        raise KeyError


def test_of_two_limits_either_may_end_first() -> None:
    with time_limit(100):
        with pytest.raises(TookTooLong), time_limit(0.1):
            loop()
        assert 50 < signal.getitimer(signal.ITIMER_REAL)[0] < 100
    with pytest.raises(TookTooLong) as caught, time_limit(0.1), time_limit(100):
        loop()
    assert caught.value.seconds == 0.1


def test_somebody_elses_alarm_still_rings() -> None:
    """As pytest-timeout uses it."""

    def ring(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(InterruptedError), time_limit(100):
            loop()
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


@pytest.mark.parametrize("seconds", [0, float("inf"), float("nan")])
def test_a_limit_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(DoctorError, match="seconds must be a finite number above 0"), time_limit(seconds):
        pass


def test_whose_line_it_is() -> None:
    libraries = (__file__, pytest.__file__)  # a library may hold the model
    assert [is_users(x) for x in (*libraries, torch.__file__, threading.__file__, "<string>")] == [True] * 2 + [
        False
    ] * 3


def test_errors_that_mean_no_memory() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.ones(10**15)
    assert [out_of_memory(x) for x in (caught.value, MemoryError(), RuntimeError("shapes"))] == [True, True, False]
