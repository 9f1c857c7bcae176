"""Passes without the function mode: those of one token, whose attention is known to be torch's own fused one.

The mode turns every torch function into a call of Python. So once a pass has had no attention but that of
scaled_dot_product_attention, the mode is taken out for the passes like it, and only the operators are heard by which
attention can be computed: on a dispatch key that no tensor has, where everything else costs nothing. A softmax or a
product at a place in the code where the pass before had none brings the mode back at once.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode, _len_torch_function_stack, _pop_mode, _push_mode

from headwise.capture import operation, products
from headwise.capture.changes import Undo, changed, replaced
from headwise.capture.follower import FOLLOWERS, Follower
from headwise.capture.ledger import where
from headwise.capture.sites import calls_of
from headwise.capture.trail import is_parameter
from headwise.functional import running

if TYPE_CHECKING:
    from headwise.capture.functions import Functions

# It belongs to a device for which PyTorch has no code any more, so that nobody else has kernels there.
_KEY = "AutocastIPU"
_CAN = hasattr(torch._C.DispatchKey, _KEY) and hasattr(torch._C, "_dispatch_tls_set_dispatch_key_included")
# Where attention begins that is written by hand. A product with a parameter is none.
_BEGINS = {name.strip("_") for name in (*products.PRODUCTS, *operation.BARE, "exp")} - {"sum", "mean"}
_FUSED = "scaled_dot_product_attention", "cat"


class Understood(NamedTuple):
    """A pass without any attention but scaled_dot_product_attention of one query."""

    model: nn.Module
    followers: tuple[Follower, ...]
    shapes: dict[object, tuple[int, ...]]  # of what the model was given
    begun: frozenset[str]  # places in its code where something begins that was no attention then

    def is_like(self, other: Understood) -> bool:
        """Whether another pass, so far as it is known before it runs, is of the same kind: of one token again."""
        if self.model is not other.model or self.followers != other.followers or [*self.shapes] != [*other.shapes]:
            return False
        pairs = zip(self.shapes.values(), other.shapes.values(), strict=True)  # (only the length of a mask may change)
        return all(a == b or (a[:-1] == b[:-1] and len(a) == len(b) and a[-1] != 1) for a, b in pairs)


class Passes:
    """The passes of models in one thread: which of them are understood, and run without the thread's mode.

    Args:
        mode: of the thread.
    """

    def __init__(self, mode: Functions) -> None:
        self.begun: set[str] | None = None  # where something began in it that may become attention; None = not noted
        self._mode, self._depth = mode, -1  # how many modes are below its place while it is taken out
        self._now: Understood | None = None  # the pass that runs
        self._known: Understood | None = None  # the last one that was understood
        self._is_like = False  # whether it is like the last one
        self._before = (0, 0)
        self._hearing, self._hears = contextlib.ExitStack(), False

    def begin(self, model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """A followed model begins a pass. Returns whether `end` must be told of its end."""
        if self._now is not None or not _CAN or torch.is_grad_enabled() or calls_of(model) != 1:
            return False
        given: list[tuple[object, Any]] = [*enumerate(args), *kwargs.items()]
        shapes = {name: tuple(x.shape) for name, x in given if isinstance(x, Tensor)}
        self._now = Understood(model, FOLLOWERS.here(), shapes, frozenset())
        self._before, known, recogniser = self._counts(), self._known, self._mode.recogniser
        self._is_like = known is not None and known.is_like(self._now)
        if known is not None and self._is_like:
            self._now, recogniser.understood = self._now._replace(begun=known.begun), True
            self._sleep()
        else:
            self.begun = set()
        return True

    def end(self, model: nn.Module) -> None:
        """It has ended."""
        now = self._now
        if now is None or now.model is not model or calls_of(model) != 1:
            return
        self.wake()
        fused, others = (after - before for before, after in zip(self._before, self._counts(), strict=True))
        is_usual = fused > 0 and others == 0 and all(each.changes or not each.needs_values for each in now.followers)
        begun = now.begun if self.begun is None else frozenset(self.begun)
        if is_usual:
            self._known = now._replace(begun=begun)
        elif self._is_like:
            self._known = None
        self._now, self.begun, self._mode.recogniser.understood = None, None, False

    def change(self) -> None:
        """Others follow from here on: nothing is understood."""
        self.wake()
        self._now = self._known = self.begun = None
        self._mode.recogniser.understood = False

    def close(self) -> None:
        """Nobody listens in this thread any more."""
        self.change()
        self._hearing.close()

    def wake(self) -> None:
        """Put the mode back into its place, if it is taken out."""
        if self._depth < 0:
            return
        _set_heard(False)
        above = [_pop_mode() for _ in range(_len_torch_function_stack() - self._depth)]
        for each in (self._mode, *reversed(above)):
            _push_mode(each)
        self._depth = -1
        _thread.asleep = None

    def _sleep(self) -> None:
        above = take_out(self._mode)
        self._depth = _len_torch_function_stack() - above
        if not self._hears:
            self._hearing.enter_context(changed("operators", _hear_operators))
            self._hears = True
        _thread.asleep = self
        _set_heard(True)

    def _counts(self) -> tuple[int, int]:
        return self._mode.recogniser.fused, self._mode.recogniser.others

    def heard(self, name: str, operator: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """What an operator computes, and what edits make of it."""
        if name in _FUSED:
            return self._mode.handle(operator, args, kwargs)
        if any(isinstance(x, Tensor) and is_parameter(x) for x in args[:2]):
            return operator(*args, **kwargs)
        if self._now is not None and where() in self._now.begun:
            return operator(*args, **kwargs)
        before, out = self._counts(), self._mode.handle(operator, args, kwargs)
        if self._mode.recogniser.trails or self._counts() != before:
            self.wake()
        return out


class _Thread(threading.local):
    asleep: Passes | None = None


_thread = _Thread()


def take_out(mode: TorchFunctionMode) -> int:
    """Take a mode from its place among the modes of this thread. Returns how many are above it."""
    above = []
    while _len_torch_function_stack() and (top := _pop_mode()) is not mode:
        above.append(top)
    for each in reversed(above):
        _push_mode(each)
    return len(above)


def _set_heard(heard: bool) -> None:
    """Whether the operators of this thread are heard."""
    key = getattr(torch._C.DispatchKey, _KEY)
    torch._C._dispatch_tls_set_dispatch_key_excluded(key, not heard)
    torch._C._dispatch_tls_set_dispatch_key_included(key, heard)


def _hear_operators() -> Undo:
    stack = contextlib.ExitStack()
    others, operators = torch.library.Library("_", "IMPL"), torch.library.Library("aten", "IMPL")
    stack.callback(others._destroy)
    stack.callback(operators._destroy)
    others.fallback(torch.library.fallthrough_kernel, _KEY)
    for name, operator in _operators():
        operators.impl(name, _hearing(name.partition(".")[0], operator), _KEY)
    for kind in (torch._ops.OpOverload, torch._ops.OpOverloadPacket):
        stack.callback(replaced(kind, "__call__", _waking))
    return stack.close


@functools.cache
def _operators() -> list[tuple[str, Any]]:
    """By which attention is computed, or begins."""
    found = []
    for full in torch._C._dispatch_get_all_op_names():
        namespace, _, name = full.partition("::")
        base, _, overload = name.partition(".")
        wanted = base in _FUSED or base.strip("_") in _BEGINS or ("attention" in base and "backward" not in base)
        if namespace == "aten" and wanted:
            found.append((name, getattr(getattr(torch.ops.aten, base), overload or "default")))
    return found


def _hearing(name: str, operator: Callable[..., Any]) -> Callable[..., Any]:
    def hear(*args: Any, **kwargs: Any) -> Any:
        passes = _thread.asleep
        _set_heard(False)  # not what it is made of
        try:
            if passes is None or running() or not FOLLOWERS.here():
                return operator(*args, **kwargs)
            return passes.heard(name, operator, args, kwargs)
        finally:
            _set_heard(_thread.asleep is not None)

    return hear


def is_foreign(operator: Any) -> bool:
    """Whether an operator is of another library than torch."""
    packet = getattr(operator, "_qualified_op_name", "aten::").partition("::")[0]
    return getattr(operator, "namespace", packet) not in ("aten", "prims", "prim", "higher_order")


def _waking(original: Callable[..., Any]) -> Callable[..., Any]:
    """Operators of other libraries may be attention: the mode decides."""

    @functools.wraps(original)
    def call(operator: Any, /, *args: Any, **kwargs: Any) -> Any:
        if _thread.asleep is not None and is_foreign(operator):
            _thread.asleep.wake()
        return original(operator, *args, **kwargs)

    return call
