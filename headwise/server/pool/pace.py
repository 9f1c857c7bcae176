"""`Pace`: measures whether more threads make a model faster on this machine at this time."""

from __future__ import annotations

_NEW = 0.5  # the share of the newest time in the recent average
_TRY = 200  # every 200 rows the slower choice is tried: too rarely to be seen in the 99th percentile


class Pace:
    """Measures the time of a model for one row alone, with few and with many threads, and chooses the faster number.

    More threads halve the time of a row if cores are idle. If other programs use the cores, the threads wait for one
    another, and the row takes longer than with one thread.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}  # threads -> recent seconds for each character
        self._warm: set[int] = set()
        self._asked = 0

    def choose(self, few: int, many: int) -> int:
        """Choose the number of threads for the next row: `few`, or `many`, which other idle workers do not need."""
        if few == many:
            return few
        self._asked += 1
        for untried in (many, few):
            if untried not in self._seconds:
                return untried
        fast, slow = sorted((few, many), key=self._seconds.__getitem__)
        return fast if self._asked % _TRY else slow

    def took(self, threads: int, size: int, seconds: float) -> None:
        """Record the time of a row of `size` characters. The first row with each number of threads is not counted."""
        if threads not in self._warm:  # the first time includes creating threads and first memory accesses
            self._warm.add(threads)
            return
        each = seconds / size
        self._seconds[threads] = (1 - _NEW) * self._seconds.get(threads, each) + _NEW * each
