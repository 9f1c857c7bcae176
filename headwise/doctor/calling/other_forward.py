"""A module that is called in another way than its class says; name, source and documents are those of its class."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from torch import nn

from headwise.doctor.calling import names


def give(module: nn.Module, forward: Callable[..., Any], signature: inspect.Signature, **attributes: Any) -> nn.Module:
    """The module itself with another forward: its class becomes a subclass of its own class."""
    cls = type(module)
    functools.update_wrapper(forward, cls.forward)  # its docstring and its file are read
    forward.__signature__ = signature  # type: ignore[attr-defined]
    held = {"forward": forward, "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    module.__class__ = type(cls.__name__, (cls,), {**held, **attributes})
    return module


def with_sides(module: nn.Module) -> nn.Module | None:
    """The module itself, taking the sides of its map as arguments of forward from now on, where its caller sets them:
    `block.H, block.W = H, W`, then block(x [B, H·W, C]). None if it holds no unset sides.
    """
    held = {name for name, value in vars(module).items() if value is None and name.lower() in names.SIDES}
    if sorted(names.SIDES[name.lower()] for name in held) != ["h", "w"]:
        return None
    cls = type(module)
    signature = inspect.signature(cls.forward)
    if held & set(signature.parameters):
        return None
    sides = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(held)]

    def forward(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        for name in held:
            setattr(self, name, kwargs.pop(name))
        return cls.forward(self, *args, **kwargs)

    parameters = list(signature.parameters.values())
    last = parameters.pop() if parameters and parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else None
    whole = [*parameters, *sides, *([last] if last else [])]
    return give(module, forward, signature.replace(parameters=whole))
