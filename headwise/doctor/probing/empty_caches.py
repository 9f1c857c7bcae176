"""Empty caches that a module may take: its example's, those of the classes and methods that make them, dicts, lists."""

from __future__ import annotations

import copy
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.doctor.calling import sizes

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Interface

# Methods that make one.
_MAKES = re.compile(r"^(new|make|init|create|empty|allocate|setup|get)_?\w*cache", re.IGNORECASE)
# The sizes that a cache is made for, by the names of its constructor's arguments.
_SIZES: tuple[tuple[re.Pattern[str], Callable[[Interface, int, int], Any]], ...] = (
    (re.compile(r"batch|^bs?z?$"), lambda how, batch, length: batch),
    (re.compile(r"layers?$|depth"), lambda how, batch, length: _layers(how.module)),
    (re.compile(r"heads?$|groups"), lambda how, batch, length: how.kv_heads or how.heads),
    (re.compile(r"head_?dim|^d_?k$|^dim$|head_size"), lambda how, batch, length: sizes.head_dims(how.module)[0]),
    (re.compile(r"len|size|capacity|positions|tokens|seq"), lambda how, batch, length: length),
)


def empty_caches(how: Interface, name: str, batch: int, length: int, given: Any) -> Iterator[Callable[[], Any]]:
    """Makers of an empty cache for the argument `name`, the most likely first.

    A copy of what the example gives, the class in forward's annotation (transformers' own for its layers), the classes
    in the module's file that are called caches, what its methods make, a dict, a list.
    """
    module = how.module
    if given is not None and not _is_used(given):
        yield lambda: copy.deepcopy(given)
    try:
        hints = typing.get_type_hints(type(module).forward)
    except Exception:
        hints = {}
    hint = hints.get(name)
    for kind in (hint, *typing.get_args(hint)):
        if not inspect.isclass(kind) or kind in (type(None), Tensor, tuple):
            continue
        if kind.__module__.startswith("transformers."):
            kind = sys.modules["transformers"].DynamicCache
        yield from _built(kind, how, batch, length)
    around = getattr(inspect.unwrap(type(module).forward), "__globals__", {})  # the names of the module's own file
    for called, kind in list(around.items()):
        if inspect.isclass(kind) and "cache" in called.lower() and not issubclass(kind, (torch.nn.Module, tuple)):
            yield from _built(kind, how, batch, length)
    for method in dir(type(module)):
        if _MAKES.search(method):
            yield from _built(getattr(module, method), how, batch, length)
    yield dict
    yield list


def _layers(module: torch.nn.Module) -> int:
    """As stated, or the length of the longest list of parts."""
    stated = sizes.find(module, ["num_layers", "n_layers", "n_layer", "num_hidden_layers", "depth"])
    return max([1, *stated, *(len(x) for x in module.modules() if isinstance(x, torch.nn.ModuleList))])


def _built(kind: Callable[..., Any], how: Interface, batch: int, length: int) -> Iterator[Callable[[], Any]]:
    """Calls of a class or a method that makes a cache, if the values of its arguments are known."""
    try:
        named = inspect.signature(kind).parameters.values()
        values: dict[str, Any] = {}
        for p in named:
            if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
                size = next(find for words, find in _SIZES if words.search(p.name.lower()))
                values[p.name] = size(how, batch, length)
        if kind(**values) is None:
            return
    except Exception:  # it needs something else
        return
    yield lambda: kind(**values)


def _is_used(cache: Any) -> bool:
    """Whether there are numbers in it."""
    if isinstance(cache, Tensor):
        return bool(cache.numel()) and bool(cache.any())
    if isinstance(cache, Mapping):
        return any(_is_used(x) for x in cache.values())
    if isinstance(cache, (tuple, list)):
        return any(_is_used(x) for x in cache)
    return hasattr(cache, "__dict__") and any(_is_used(x) for x in vars(cache).values())
