"""Where in the model a computation is made: read off the call stack, so that the model need not be touched for it."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, Literal

from torch import Tensor, nn

_CALL = nn.Module._call_impl.__code__
# What modules call the sequence that is read where it is not the one that asks.
_OTHER_SEQUENCE = (
    "encoder_hidden_states",
    "key_value_states",
    "key_value",
    "context",
    "memory",
    "key",
    "inputs",
    "kv",
)
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "heads", "h")
_CROSS = re.compile(r"cross|encdec", re.IGNORECASE)
_LOOKS_LIKE = re.compile(r"attention|attn", re.IGNORECASE)


class Place:
    """A point in a model's code: the innermost of its modules that is running."""

    def __init__(
        self,
        name: str,
        module: nn.Module,
        arguments: tuple[Any, ...],
        keywords: Mapping[str, Any],
        around: Place | None = None,
    ) -> None:
        self.name = name
        self.module = module
        self._arguments = arguments
        self._keywords = keywords
        self._around = around  # the module that called this one

    @property
    def heads(self) -> int | None:
        """How many heads the module says it has."""
        for name in _HEADS:
            value = getattr(self.module, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        config = getattr(self.module, "config", None)
        value = getattr(config, "num_attention_heads", None)
        return value if isinstance(value, int) else None

    @property
    def reads_another_sequence(self) -> bool | None:
        """Whether the module was called with a second sequence to read; None if it does not say."""
        given = [x for x in (*self._arguments, *self._keywords.values()) if isinstance(x, Tensor)]
        first = given[0] if given else None
        if isinstance(self.module, nn.MultiheadAttention):
            query, key = (
                self._arguments[i] if len(self._arguments) > i else self._keywords.get(name)
                for i, name in enumerate(("query", "key"))
            )
            return not _is_same(key, query)
        said = getattr(self.module, "is_cross_attention", None)
        if said is True or _CROSS.search(type(self.module).__name__):
            return True
        others = (self._keywords.get(name) for name in _OTHER_SEQUENCE)
        if any(isinstance(x, Tensor) and x.ndim >= 2 and not _is_same(x, first) for x in others):
            return True
        if said is False:
            return False
        # One sequence of vectors [B, N, M] is all that it was given to look at. A module that was given queries and
        # keys does not know where they are from; the one that made them may.
        sequences = [x for x in given if x.ndim == 3 and x.is_floating_point()]
        if len(sequences) == 1:
            return False
        around = self._around
        return around.reads_another_sequence if around is not None and looks_like_attention(around.module) else None


def _is_same(x: object, y: object) -> bool:
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False
    return x is y or (x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride())


def find_place(names: Mapping[int, str]) -> Place | None:
    """The innermost running module of those in `names` (id -> path); None if none of them is running."""
    inner: nn.Module | None = None  # one that runs a method of its own
    found: list[tuple[str, nn.Module, tuple[Any, ...], Mapping[str, Any]]] = []  # the innermost, and what called it
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < 2:
        code = frame.f_code
        if code is _CALL:
            given = frame.f_locals
            module = given["self"]
            if inner is not None and inner is not module and not found:
                found.append((names[id(inner)], inner, (), {}))  # its method was called directly
            if id(module) in names:
                inner = module
                found.append((names[id(module)], module, given.get("args", ()), given.get("kwargs", {})))
        elif inner is None and code.co_argcount and code.co_varnames[0] == "self":
            module = frame.f_locals.get("self")
            inner = module if id(module) in names else None
        frame = frame.f_back
    if inner is not None and not found:
        found.append((names[id(inner)], inner, (), {}))
    place: Place | None = None
    for name, module, arguments, keywords in reversed(found):
        place = Place(name, module, arguments, keywords, place)
    return place


def module_names(model: nn.Module) -> dict[int, str]:
    """id -> path of every module, as `named_modules` has them; what torch.compile wraps around a model is left out."""
    return {id(module): clean(name) for name, module in model.named_modules()}


def clean(name: str) -> str:
    """A module's path without what torch.compile put into it."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The innermost modules whose class is called attention: the places where a computation may be missed."""
    named = [(clean(name), module) for name, module in model.named_modules()]
    alike = [(name, module) for name, module in named if looks_like_attention(module)]
    for name, module in alike:
        if not any(other is not module and looks_like_attention(other) for other in module.modules()):
            yield name, module


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module's class is called attention."""
    return isinstance(module, nn.MultiheadAttention) or bool(_LOOKS_LIKE.search(type(module).__name__))


def kind_of(place: Place, q_len: int, k_len: int, causal: bool) -> Literal["self", "cross"]:
    """Whether queries and keys come from one sequence or from two.

    Modules say so by their arguments. Where they do not, only a causal mask lets one sequence have more keys than
    queries (a cache).
    """
    said = place.reads_another_sequence
    if said is not None:
        return "cross" if said else "self"
    return "self" if q_len == k_len or causal or q_len == 1 else "cross"
