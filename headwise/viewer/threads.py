"""Works on several records at once, one per thread."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")
U = TypeVar("U")


def on_threads(work: Callable[[T], U], things: Collection[T]) -> Iterator[U]:
    """Yield `work(thing)` for each thing, in order, computed in as many threads as torch uses.

    Inside `work`, torch uses one thread: otherwise threads wait for each other after every operation, which on a busy
    machine takes longer than the operations.
    """
    threads = torch.get_num_threads()
    if min(threads, len(things)) <= 1:
        yield from map(work, things)
        return
    pool = ThreadPoolExecutor(min(threads, len(things)), "headwise", lambda: torch.set_num_threads(1))
    try:
        yield from pool.map(work, things)
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)  # new threads inherit the last setting
