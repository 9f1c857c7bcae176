"""Handles Ctrl-C: the first finishes and saves the current step, the second stops the training at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from headwise.language import echo, said

if TYPE_CHECKING:
    from typing_extensions import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)  # SIGTERM: sent by a cluster before it takes the machine back


class Interrupt:
    """A context in which the first Ctrl-C or SIGTERM only sets `asked`. At its end the old handlers are restored.

    Signals reach only the main thread: in another thread this context does nothing. A subclass may react differently.

    Args:
        waits: whether the first signal waits for the end of a step. If False (nothing is saved), signals act as usual.
    """

    def __init__(self, waits: bool) -> None:
        self.asked = False
        self._waits = waits
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in _SIGNALS}
            if self._waits:
                for number in _SIGNALS:
                    signal.signal(number, self._received)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
        self._tell(number)

    def _tell(self, number: int) -> None:
        echo(said("stopping after this step, and saving; Ctrl-C again stops at once"), err=True)
