"""The modules of a watched or edited model: their paths, which of them runs, how often, and how it was called."""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Set
from typing import Any

from torch import nn

from headwise.capture.follower import FOLLOWERS
from headwise.capture.functions import listened_to
from headwise.capture.huggingface import seen_through
from headwise.capture.ledger import closed
from headwise.capture.parts import Parts
from headwise.capture.sites import Place, count_calls, find_place, in_backward, module_names, threads
from headwise.records import CallSite

ELSEWHERE = "it ran in another thread, in a job that could not be followed to where it was started"


class Modules(Parts):
    """The modules of a torch model. Inside `listening` they have hooks, which count their runs."""

    looked_for = (
        "scaled_dot_product_attention, nn.MultiheadAttention, flex_attention, headwise.attention, and matmul, "
        "softmax, matmul, in every module"
    )

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self._model = model
        self.names = module_names(model)
        self._threads: set[int] = set()  # the threads in which the last pass of the model began and is followed
        self._brought = False  # whether the model has run where its functions were not listened to
        self._counted: set[int] = set()  # the modules whose runs are counted: those that compute attention
        self._hooks = contextlib.ExitStack()

    @contextlib.contextmanager
    def listening(self, missed: Callable[[str], object]) -> Iterator[None]:
        with self._hooks:
            check = functools.partial(self._check, missed)
            for module in threads(self._model):
                self._hooks.callback(module.register_forward_pre_hook(check).remove)
            self._hooks.callback(self._model.register_forward_pre_hook(self._begin).remove)
            self._hooks.enter_context(seen_through(self._model))
            yield

    def has(self, part: Any) -> bool:
        return id(part) in self.names

    def place(self) -> Place | None:
        place = find_place(self.names)
        if place is not None and id(place.module) not in self._counted:
            self._counted.add(id(place.module))
            self._hooks.callback(place.module.register_forward_pre_hook(self._count).remove)
            self.began(id(place.module))
        return place

    def nth(self, place: Place) -> int | None:
        """Return how often the running module `place.module` ran before in this pass of the model; None = unknown."""
        key = id(place.module)
        run = self._here.run.get(key, 0) - self._here.before.get(key, 0)
        if in_backward():  # gradient checkpointing runs the last module first
            return 0 if run == 0 else None
        return run if count_calls(self._model) else 0

    def notes(self) -> Iterable[str]:
        modules = self._model.modules()
        compiled = any(hasattr(each, "_orig_mod") or each._compiled_call_impl is not None for each in modules)
        return ["what torch.compile made ran eagerly"] * compiled

    def closed(self, known: Set[str]) -> Iterable[CallSite]:
        return closed(dict(self._model.named_modules()))

    def _is_here(self) -> bool:
        return any(follower.parts is self for follower in FOLLOWERS.here())

    # Hooks. They are on the model, so they run wherever it does.

    def _count(self, module: nn.Module, *_: Any) -> None:
        if not self._is_here():
            return
        if in_backward():  # gradient checkpointing: the same run again
            self._here.count[id(module)] = 0
        else:
            self.began(id(module))

    def _begin(self, *_: Any) -> None:
        if not self._is_here():
            self._threads.discard(threading.get_ident())
            return
        self.ran = True
        self._threads.add(threading.get_ident())
        if not in_backward() and count_calls(self._model) == 1:
            self._here.before = dict(self._runs)
        again = listened_to()
        if again is not None:
            if not self._brought:
                self._brought = True
                self._hooks.callback(self._model.register_forward_hook(self._end, always_call=True).remove)
            stack = contextlib.ExitStack()
            stack.enter_context(again)
            self._here.brought.append((count_calls(self._model), stack))

    def _end(self, *_: Any) -> None:
        if self._here.brought and self._here.brought[-1][0] == count_calls(self._model):
            self._here.brought.pop()[1].close()

    def _check(self, missed: Callable[[str], object], module: nn.Module, *_: Any) -> None:
        """Call `missed` for a module that runs for the model in an unfollowed thread, or that is not one of its own."""
        if not self._threads or in_backward() or (self._is_here() and id(module) in self.names):
            return
        if count_calls(self._model):  # this thread runs the model for itself
            return
        frames = sys._current_frames()
        if any(count_calls(self._model, frames[thread]) for thread in self._threads if thread in frames):
            missed(self.names.get(id(module), type(module).__name__))
