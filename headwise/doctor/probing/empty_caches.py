"""Empty caches that a module may take: its example's, those of the classes and methods that make them, dicts, lists."""

from __future__ import annotations

import copy
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from headwise.doctor.calling import sizes

if TYPE_CHECKING:
    from headwise.doctor.calling.interface import Interface

# How the name of a method that makes one begins.
_MAKES = ("new", "make", "init", "create", "empty", "allocate", "setup", "get")


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
        if method.lower().startswith(_MAKES) and "cache" in method.lower():
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
                values[p.name] = _size(p.name.lower(), how, batch, length)
        if kind(**values) is None:
            return
    except Exception:  # it needs something else
        return
    yield lambda: kind(**values)


def _size(name: str, how: Interface, batch: int, length: int) -> int:
    """The size that an argument of this name has. KeyError if its name says nothing."""
    if "batch" in name or name in ("b", "bs", "bsz"):
        return batch
    if name.endswith(("layer", "layers")) or "depth" in name:
        return _layers(how.module)
    if name.endswith(("head", "heads")) or "groups" in name:
        return how.kv_heads or how.heads or 1
    if "head_dim" in name or "headdim" in name or "head_size" in name or name in ("d_k", "dk", "dim"):
        return sizes.head_dims(how.module)[0]
    if any(word in name for word in ("len", "size", "capacity", "positions", "tokens", "seq")):
        return length
    raise KeyError(name)


def _is_used(cache: Any) -> bool:
    """Whether there are numbers in it."""
    if isinstance(cache, Tensor):
        return bool(cache.numel()) and bool(cache.any())
    if isinstance(cache, Mapping):
        return any(_is_used(x) for x in cache.values())
    if isinstance(cache, (tuple, list)):
        return any(_is_used(x) for x in cache)
    return hasattr(cache, "__dict__") and any(_is_used(x) for x in vars(cache).values())
