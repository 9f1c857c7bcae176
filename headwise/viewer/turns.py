"""Threads that work out many answers in turns, those with the fewest cells first: a cell never waits for a whole map.

Each thread works on a part of its own. That is about as quick as to share every product among all cores, and far
quicker where something else is running on one of them, such as the browser that asked.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections import deque
from concurrent.futures import Future
from typing import Any, TypeVar

import torch

from headwise.viewer.answers import Answer, Part

T = TypeVar("T")


class _Asked:
    """An answer that somebody waits for."""

    def __init__(self, answer: Answer[Any], order: int) -> None:
        self.answer, self.key = answer, (answer.cells, order)
        self.parts = deque(answer.parts)  # that nobody works on at the moment
        self.working = 0  # how many threads work on others
        self.future: Future[Any] = Future()


class Turns:
    """Give it answers to work out; it gives futures of their results. One that is cancelled is not worked on."""

    def __init__(self, name: str, threads: int) -> None:
        self._asked: list[_Asked] = []  # the most urgent first
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False
        before = torch.get_num_threads()
        ready = threading.Barrier(threads + 1)
        self._threads = [
            threading.Thread(target=self._run, args=(ready,), name=name, daemon=True) for _ in range(threads)
        ]
        for thread in self._threads:
            thread.start()
        ready.wait()
        # How many threads torch uses is each thread's own, but what new threads begin with has to be put back.
        torch.set_num_threads(before)

    def ask(self, answer: Answer[T]) -> Future[T]:
        """A future of the result. The fewest cells go first; of equally many, what was asked first."""
        asked = _Asked(answer, next(self._order))
        if not asked.parts:
            asked.future.set_result(answer.result())
            return asked.future
        with self._changed:
            if self._stopped:
                asked.future.cancel()
            else:
                bisect.insort(self._asked, asked, key=lambda each: each.key)
                self._changed.notify_all()
        return asked.future

    def stop(self) -> None:
        """Work on nothing more; what is not answered yet is cancelled."""
        with self._changed:
            self._stopped = True
            for asked in self._asked:
                asked.future.cancel()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop, and wait for the threads."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _run(self, ready: threading.Barrier) -> None:
        torch.get_num_threads()  # at first a thread takes what new threads begin with, even after it was told otherwise
        torch.set_num_threads(1)
        ready.wait()
        while self._work():
            pass

    def _work(self) -> bool:
        """Work on what is most urgent, until it pauses; False at the end."""
        turn = self._next()
        if turn is None:
            return False
        asked, part = turn
        try:
            with torch.no_grad():
                through = next(part, True)  # None at a pause
            self._settle(asked, None if through else part)
        except Exception as error:
            self._fail(asked, error)
        return True

    def _next(self) -> tuple[_Asked, Part] | None:
        """What is to be worked on; None at the end."""
        with self._changed:
            while not self._stopped:
                self._asked = [asked for asked in self._asked if not asked.future.done()]
                first = next((asked for asked in self._asked if asked.parts), None)
                if first is not None:
                    first.working += 1
                    return first, first.parts.popleft()
                self._changed.wait()
        return None

    def _settle(self, asked: _Asked, paused: Part | None) -> None:
        """A part has paused, or is through; after the last one comes the result."""
        with self._changed:
            asked.working -= 1
            if paused is not None:
                asked.parts.appendleft(paused)
                self._changed.notify()  # this thread may have something more urgent to do
            if asked.parts or asked.working:
                return
        result = asked.answer.result()
        if asked.future.set_running_or_notify_cancel():
            asked.future.set_result(result)

    def _fail(self, asked: _Asked, error: Exception) -> None:
        with self._changed:
            if not asked.future.done() and asked.future.set_running_or_notify_cancel():
                asked.future.set_exception(error)
