"""Finds out from the call stack which module of a model makes a computation, without a change to the model."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

_CALL = nn.Module._call_impl.__code__
_CHECKPOINT = inspect.unwrap(checkpoint.checkpoint).__code__
# Names of arguments that hold the sequence of the keys, if it is another sequence than the one of the queries.
_OTHER_SEQUENCE = ("encoder_hidden_states", "key_value_states", "key_value", "context", "memory", "key", "inputs", "kv")
_HEADS = ("num_heads", "num_attention_heads", "n_heads", "n_head", "nhead", "no_heads", "heads", "h")
_CACHE = re.compile(r"cache|past", re.IGNORECASE)
_CROSS = re.compile(r"cross|encdec", re.IGNORECASE)
_PARTS = ("torch.nn.", "transformers.pytorch_utils", "transformers.activations")  # where layers without attention are
_LOOKS_LIKE = re.compile(r"attention|attn", re.IGNORECASE)


@dataclass(eq=False)
class Place:
    """The innermost of a model's modules that is running now, and the arguments with which it was called."""

    name: str
    module: nn.Module
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    around: Place | None = None  # the module that called this one

    @property
    def heads(self) -> int | None:
        """The number of heads that the module states in an attribute or in its config; None if it states none."""
        for name in _HEADS:
            value = getattr(self.module, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        config = getattr(self.module, "config", None)
        value = getattr(config, "num_attention_heads", None)
        return value if isinstance(value, int) else None

    @property
    def has_cache(self) -> bool:
        """Whether the module was given a cache of keys, as an argument or attribute whose name says so."""
        flags = (bool, int, float, str, type(None))  # use_cache=True is no cache
        given = (name for name, value in self.keywords.items() if not isinstance(value, flags))
        held = (name for name, value in list(vars(self.module).items()) if not isinstance(value, flags))
        if any(_CACHE.search(name) for name in (*given, *held, *getattr(self.module, "_buffers", ()))):
            return True
        passed = any(_CACHE.search(type(value).__name__) for value in self.arguments)
        return passed or (self.around is not None and self.around.has_cache)

    @property
    def reads_another_sequence(self) -> bool | None:
        """Whether the keys come from a second sequence, judged by the module's arguments; None if these do not tell."""
        given = [x for x in (*self.arguments, *self.keywords.values()) if isinstance(x, Tensor)]
        first = given[0] if given else None
        if isinstance(self.module, nn.MultiheadAttention):
            named = {**self.keywords, **dict(zip(("query", "key"), self.arguments, strict=False))}
            return not is_same_view(named.get("key"), named.get("query"))
        said = getattr(self.module, "is_cross_attention", None)
        if said is True or _CROSS.search(type(self.module).__name__):
            return True
        others = (self.keywords.get(name) for name in _OTHER_SEQUENCE)
        if any(isinstance(x, Tensor) and x.ndim >= 2 and not is_same_view(x, first) for x in others):
            return True
        if said is False:
            return False
        # A module with one sequence of vectors [B, N, M] attends to that sequence. A module that is given queries and
        # keys does not know where they come from; the module around it may.
        sequences = [x for x in given if x.ndim == 3 and x.is_floating_point()]
        if len(sequences) == 1:
            return False
        around = self.around
        return around.reads_another_sequence if around is not None and looks_like_attention(around.module) else None


def is_same_view(x: Any, y: Any) -> bool:
    """Return whether two objects are tensors that read the same memory with the same shape and strides."""
    if not isinstance(x, Tensor) or not isinstance(y, Tensor):
        return False
    return x is y or (x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride())


def find_place(names: Mapping[int, str]) -> Place | None:
    """Find the innermost running module among those in `names` (id -> path); None if none of them is running."""
    found: list[tuple[nn.Module, tuple[Any, ...], Mapping[str, Any]]] = []  # the innermost, and its caller
    by_method = False  # whether only a method of the innermost module was found so far
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < 2:
        code = frame.f_code
        if code is _CALL:
            given = frame.f_locals
            module = given["self"]
            if id(module) in names:
                if by_method and module is found[0][0]:
                    found.clear()
                by_method = False
                found.append((module, given.get("args", ()), given.get("kwargs", {})))
        elif not found and code.co_argcount and code.co_varnames[0] == "self":
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and id(module) in names:
                by_method = True
                found.append((module, (), {}))
        frame = frame.f_back
    place: Place | None = None
    for module, arguments, keywords in reversed(found):
        place = Place(names[id(module)], module, arguments, keywords, place)
    return place


def count_calls(module: nn.Module, frame: FrameType | None = None) -> int:
    """Count the running calls of a module: in this thread, or in the thread to which `frame` (of its stack) belongs."""
    return sum(each.f_code is _CALL and each.f_locals.get("self") is module for each in _frames(frame))


def is_checkpointed() -> bool:
    """Return whether this thread runs inside of gradient checkpointing, which repeats the run in the backward pass."""
    return any(frame.f_code is _CHECKPOINT for frame in _frames())


def in_backward() -> bool:
    """Whether a backward pass runs in this thread."""
    return torch._C._current_graph_task_id() != -1


def _frames(frame: FrameType | None = None) -> Iterator[FrameType]:
    """Yield the frames of a thread's stack, the innermost first, from `frame` on; None = of this thread."""
    frame = frame or sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def module_names(model: nn.Module) -> dict[int, str]:
    """Return id -> path of every module, without wrappers of torch.compile. The model itself is named by its class."""
    return {id(module): clean(name) or type(module).__name__ for name, module in model.named_modules()}


def clean(name: str) -> str:
    """Return a module's path without the parts that torch.compile adds."""
    return ".".join(part for part in name.split(".") if part != "_orig_mod")


def attention_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the innermost modules whose class name says "attention". It is a guess: no record depends on it."""
    for name, module in model.named_modules():
        if looks_like_attention(module) and sum(map(looks_like_attention, module.modules())) == 1:
            yield clean(name), module


def threads(model: nn.Module) -> Iterator[nn.Module]:
    """Yield the modules that other threads may call directly: all but the smallest (a layer norm, a linear layer)."""
    for module in model.modules():
        ours = type(module).__module__.startswith(_PARTS) and not any(True for _ in module.children())
        lists = isinstance(module, (nn.ModuleList, nn.ModuleDict, torch.jit.ScriptModule))
        if not isinstance(module, torch.jit.ScriptModule) and (module is model or not (ours or lists)):
            yield module


def looks_like_attention(module: nn.Module) -> bool:
    """Whether a module's class name says that it is attention."""
    return isinstance(module, nn.MultiheadAttention) or bool(_LOOKS_LIKE.search(type(module).__name__))


def find_kind(place: Place, q_len: int, k_len: int, causal: bool) -> Literal["self", "cross"]:
    """Decide whether queries and keys come from one sequence ("self") or from two ("cross").

    The module's arguments usually tell. Otherwise sequences of different lengths are two sequences, except that under a
    causal mask, or with a single query, one sequence may have more keys than queries (a cache).
    """
    said = place.reads_another_sequence
    if said is not None:
        return "cross" if said else "self"
    return "self" if q_len == k_len or causal or q_len == 1 else "cross"
