"""What is open here: in threads, tasks and generators, and where their work was started."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from headwise.scope import Scope, alone, carried

SCOPE: Scope[str] = Scope()
Found = tuple[str, ...]


def generator(value: str) -> Iterator[Found]:
    with SCOPE.open(value):
        for _ in range(2):
            yield SCOPE.here()


@contextlib.contextmanager
def for_its_caller(value: str) -> Iterator[None]:
    with SCOPE.open(value):
        yield


@pytest.fixture
def fixture() -> Iterator[None]:
    with SCOPE.open("fixture"):
        yield


def test_values_leave_in_any_order() -> None:
    one, two = SCOPE.open("one"), SCOPE.open("two")
    one.__enter__()
    two.__enter__()
    assert SCOPE.here() == ("one", "two")
    one.__exit__()
    assert SCOPE.here() == ("two",)
    two.__exit__()
    assert SCOPE.here() == ()


def test_another_scope_has_other_values() -> None:
    other: Scope[int] = Scope()
    with SCOPE.open("here"), other.open(1):
        assert (SCOPE.here(), other.here()) == (("here",), (1,))


def test_a_generator_has_its_own_between_those_around_it() -> None:
    with SCOPE.open("around"):
        one, two = generator("one"), generator("two")
        assert next(one) == ("around", "one")
        assert next(two) == ("around", "two")
        assert SCOPE.here() == ("around",)
        one.close()
        assert next(two) == ("around", "two")
    assert list(two) == []
    assert SCOPE.here() == ()


def test_a_generator_that_is_dropped_leaves_nothing() -> None:
    assert next(generator("one")) == ("one",)
    assert SCOPE.here() == ()


def test_a_context_manager_and_a_fixture_hold_for_their_callers(fixture: None) -> None:
    with for_its_caller("one"), contextlib.ExitStack() as stack:
        assert all(stack.enter_context(for_its_caller(name)) is None for name in ("two", "three"))
        assert SCOPE.here() == ("fixture", "one", "two", "three")


def test_threads_have_values_of_their_own() -> None:
    found: dict[str, Found] = {}

    def look(name: str) -> None:
        with SCOPE.open(name):
            found[name] = SCOPE.here()

    with SCOPE.open("around"):
        threads = [
            threading.Thread(target=look, args=("one",)),
            threading.Thread(target=carried(look), args=("two",)),
            threading.Thread(target=carried(alone(look)), args=("three",)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"one": ("one",), "two": ("around", "two"), "three": ("three",)}


def test_what_was_closed_meanwhile_is_not_found_by_a_job() -> None:
    with SCOPE.open("one"):
        job = carried(SCOPE.here)
        assert job() == ("one",)
    assert job() == ()
    assert carried(SCOPE.here) is not job
    assert carried(len) is len


def test_tasks_begin_with_what_is_open_where_they_are_made() -> None:
    async def task(name: str, seconds: float) -> list[Found]:
        with SCOPE.open(name):
            found = [SCOPE.here()]
            await asyncio.sleep(seconds)
            return [*found, SCOPE.here(), *await asyncio.gather(child())]

    async def child() -> Found:
        return SCOPE.here()

    async def all_of_them() -> list[list[Found]]:
        with SCOPE.open("around"):
            return await asyncio.gather(task("one", 0.0), task("two", 0.002))

    assert asyncio.run(all_of_them()) == [[("around", "one")] * 3, [("around", "two")] * 3]


def test_an_asynchronous_generator_has_its_own_and_so_have_the_tasks_that_it_makes() -> None:
    async def look() -> Found:
        return SCOPE.here()

    async def stream() -> AsyncIterator[Found]:
        with SCOPE.open("stream"):
            yield SCOPE.here()
            yield await asyncio.create_task(look())

    async def consumer() -> list[Found]:
        return [each async for found in stream() for each in (found, SCOPE.here())]

    assert asyncio.run(consumer()) == [("stream",), (), ("stream",), ()]
