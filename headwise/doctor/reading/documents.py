"""What is written about a module: the docstrings of its class, of its methods, and of the functions that these call."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from torch import nn


def documents(module: nn.Module) -> list[str]:
    """Each of them once."""
    return list(dict.fromkeys(inspect.cleandoc(x) for x in _docstrings(module) if x))


def _docstrings(module: nn.Module) -> Iterator[str]:
    for kind in type(module).__mro__:
        if kind.__module__.startswith("torch.") or kind is object:
            continue
        yield kind.__doc__ or ""
        for member in vars(kind).values():
            function = getattr(member, "__func__", member)  # of a class method
            if not inspect.isfunction(function):
                continue
            yield function.__doc__ or ""
            for name in function.__code__.co_names:
                called = function.__globals__.get(name)
                if inspect.isfunction(called) and called.__module__ == function.__module__:
                    yield called.__doc__ or ""
