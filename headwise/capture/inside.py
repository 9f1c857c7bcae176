"""Inside `watch`, `edit` and `monitor`: informs followers of the attention in the running code and in its threads.

A follower (follower.py) is an object that watches or edits a model. It is informed of the attention of its model in the
code for which its context is open; `headwise.scope` says which code that is.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from typing import Any

import torch

from headwise.capture.changes import Undo, changed, replaced
from headwise.capture.follower import FOLLOWERS, Follower
from headwise.capture.functions import functions_here
from headwise.scope import alone, carried


@contextlib.contextmanager
def following(follower: Follower, *, functions: bool = True) -> Iterator[None]:
    """Return a context in which a follower (it watches or edits a model) is informed of the attention in its model.

    `functions` False: do not listen to torch functions, because the model is one of another framework.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(follower.parts.listening(follower.missed))
        stack.enter_context(changed("jobs of threads", _carry_jobs))
        stack.enter_context(FOLLOWERS.open(follower))
        if functions:
            stack.enter_context(running_eagerly())
            stack.enter_context(functions_here())
        yield


def running_eagerly() -> contextlib.AbstractContextManager[None]:
    """Return a context in which functions made by torch.compile run eagerly in the whole process, if there are any."""
    return changed("stance", _set_stance) if "torch._dynamo" in sys.modules else contextlib.nullcontext()


def _set_stance() -> Undo:
    stance = torch.compiler.set_stance("force_eager")
    return lambda: stance.__exit__(None, None, None)


# The methods of a pool of threads that take a job as the first argument.
_OF_POOLS = ("apply_async", "_map_async", "imap", "imap_unordered")


# Work in other threads is reported to the followers of the code that started it.


def _carry_jobs() -> Undo:
    stack = contextlib.ExitStack()
    stack.callback(replaced(threading.Thread, "start", _starting))
    stack.callback(replaced(ThreadPoolExecutor, "submit", _submitting))
    for name in _OF_POOLS:
        stack.callback(replaced(ThreadPool, name, _submitting))
    return stack.close


def _starting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def start(thread: threading.Thread) -> Any:
        job = thread.run
        taken = _taken(job)

        def run() -> None:
            del thread.run  # else the thread would keep itself alive
            taken()

        if taken is not job:
            thread.run = run  # type: ignore[method-assign]
        return original(thread)

    return start


def _submitting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def submit(pool: Any, job: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        # A thread that the pool starts for this job will run other jobs, too.
        return alone(original)(pool, _taken(job), *args, **kwargs)

    return submit


def _taken(job: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a thread's job so that the watches and edits open here follow it too; the job itself if there are none."""
    taken = carried(job)
    if taken is job:
        return job

    @functools.wraps(job)
    def run(*args: Any, **kwargs: Any) -> Any:
        with functions_here():
            return taken(*args, **kwargs)

    return run
