"""Answers in turns: the least work first, nothing after it is cancelled, and failures reach whoever asked."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import CancelledError
from functools import partial

import pytest
import torch

from headwise.viewer.answers import Answer
from headwise.viewer.turns import Turns

LONG = 10  # seconds after which a test that waits has failed


@pytest.fixture(params=[1, 3])
def turns(request: pytest.FixtureRequest) -> Iterator[Turns]:
    turns = Turns("test", request.param)
    yield turns
    turns.close()


def steps(*work: Callable[[], object]) -> Generator[None, None, None]:
    """A part that pauses after each step."""
    for each in work:
        each()
        yield


def gate(turns: Turns) -> threading.Event:
    """Keep all threads busy until the event is set."""
    opened, waiting = threading.Event(), threading.Barrier(len(turns._threads) + 1)

    def wait() -> None:
        waiting.wait(LONG)
        opened.wait(LONG)

    turns.ask(Answer([steps(wait) for _ in turns._threads], lambda: None, -1))
    waiting.wait(LONG)
    return opened


def test_the_result_comes_after_all_parts(turns: Turns) -> None:
    done: list[int] = []
    parts = [steps(*3 * [partial(done.append, i)]) for i in range(5)]
    assert turns.ask(Answer(parts, lambda: sorted(done), 1)).result(LONG) == sorted(3 * [*range(5)])

    assert turns.ask(Answer([], lambda: "done", 1)).result(LONG) == "done"


def test_the_result_waits_for_parts_on_other_threads() -> None:
    turns, go_on = Turns("test", 2), threading.Event()
    future = turns.ask(Answer([steps(partial(go_on.wait, LONG)), steps()], lambda: "done", 1))
    turns.ask(Answer([steps()], lambda: None, 2)).result(LONG)  # the other thread is through with the second part
    assert not future.done()
    go_on.set()
    assert future.result(LONG) == "done"
    turns.close()


def test_fewer_cells_go_first(turns: Turns) -> None:
    opened = gate(turns)
    order: list[int] = []
    sizes = (30, 10, 20, 10)
    futures = [turns.ask(Answer([steps(partial(order.append, size))], lambda: None, size)) for size in sizes]
    opened.set()
    for future in futures:
        future.result(LONG)
    assert order == [10, 10, 20, 30] if len(turns._threads) == 1 else sorted(order) == [10, 10, 20, 30]


def test_a_small_question_does_not_wait_for_a_large_one(turns: Turns) -> None:
    asked, answered = threading.Event(), threading.Event()
    first = Answer([steps(lambda: asked.wait(LONG), lambda: answered.wait(LONG)) for _ in turns._threads], lambda: 1, 9)
    large = turns.ask(first)
    small = turns.ask(Answer([steps()], lambda: 2, 1))
    asked.set()  # every thread has begun the large one, and comes to a pause
    assert small.result(LONG) == 2
    assert not large.done()
    answered.set()
    assert large.result(LONG) == 1


def test_what_is_cancelled_is_dropped(turns: Turns) -> None:
    began, dropped = threading.Event(), threading.Event()

    def endless() -> Generator[None, None, None]:
        try:
            while True:
                began.set()
                yield
        finally:
            dropped.set()

    future = turns.ask(Answer([endless()], lambda: None, 1))
    assert began.wait(LONG)
    assert future.cancel()
    assert dropped.wait(LONG)
    assert turns.ask(Answer([steps()], lambda: "next", 1)).result(LONG) == "next"


@pytest.mark.parametrize("where", ["part", "result"])
def test_a_failure_is_told(turns: Turns, where: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError(where)

    answer = Answer([steps(fail), steps()], lambda: None, 1) if where == "part" else Answer([steps()], fail, 1)
    with pytest.raises(ZeroDivisionError, match=where):
        turns.ask(answer).result(LONG)
    assert turns.ask(Answer([steps()], lambda: "next", 1)).result(LONG) == "next"


def test_what_is_not_answered_at_the_end_is_cancelled(turns: Turns) -> None:
    opened = gate(turns)
    before = turns.ask(Answer([steps()], lambda: None, 1))
    turns.stop()
    after = turns.ask(Answer([steps()], lambda: None, 1))
    opened.set()
    for future in (before, after):
        with pytest.raises(CancelledError):
            future.result(LONG)


def test_torch_uses_as_many_threads_as_before() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        turns, inside = Turns("test", 2), []
        turns.ask(Answer([steps(lambda: inside.append(torch.get_num_threads()))], lambda: None, 1)).result(LONG)
        new = threading.Thread(target=lambda: inside.append(torch.get_num_threads()))
        new.start()
        new.join()
        turns.close()
        assert [torch.get_num_threads(), *inside] == [3, 1, 3]
    finally:
        torch.set_num_threads(before)
