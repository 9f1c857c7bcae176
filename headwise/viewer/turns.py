"""Computes many requested results on threads, the small ones first, so that one row never waits for a whole map.

Each thread computes separate parts. This is about as fast as sharing every product among all cores, and much faster
if another program, such as the browser, is using one of the cores.
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
    """A requested result that a caller waits for."""

    def __init__(self, answer: Answer[Any], order: int) -> None:
        self.answer, self.key = answer, (answer.cells, order)
        self.parts = deque(answer.parts)  # the parts on which no thread works
        self.working = 0  # the number of threads that work on its other parts
        self.future: Future[Any] = Future()


class Turns:
    """Takes results to compute and returns futures of them. A cancelled future is not computed further."""

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
        # torch's thread count is per thread, but the default of new threads has to be restored.
        torch.set_num_threads(before)

    def ask(self, answer: Answer[T]) -> Future[T]:
        """Return a future of the result. Results with fewer cells go first; among equals, the one requested earlier."""
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
        """Stop working, and cancel the futures of all results that are not computed yet."""
        with self._changed:
            self._stopped = True
            for asked in self._asked:
                asked.future.cancel()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop all work, and wait until the threads have ended."""
        self.stop()
        for thread in self._threads:
            thread.join()

    def _run(self, ready: threading.Barrier) -> None:
        torch.get_num_threads()  # the first call in a thread resets its count to the default, so call it now
        torch.set_num_threads(1)
        ready.wait()
        while self._work():
            pass

    def _work(self) -> bool:
        """Work on the most urgent part until it pauses. Returns False when the threads should end."""
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
        """Return the next part to work on, with its result; None when the threads should end."""
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
        """Handle a part that has paused or finished; after the last part, set the result of the future."""
        with self._changed:
            asked.working -= 1
            if paused is not None:
                asked.parts.appendleft(paused)
                self._changed.notify()  # this thread may get more urgent work
            if asked.parts or asked.working:
                return
        result = asked.answer.result()
        if asked.future.set_running_or_notify_cancel():
            asked.future.set_result(result)

    def _fail(self, asked: _Asked, error: Exception) -> None:
        with self._changed:
            if not asked.future.done() and asked.future.set_running_or_notify_cancel():
                asked.future.set_exception(error)
