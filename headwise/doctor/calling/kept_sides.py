"""Blocks of images whose caller sets the sides of the map: `block.H, block.W = H, W`, then block(x [B, H·W, C])."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from headwise.doctor.calling import names, other_forward


def passed(module: nn.Module) -> nn.Module | None:
    """The module itself, taking its sides as arguments of forward from now on; None if it holds no unset sides."""
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
    return other_forward.give(module, forward, signature.replace(parameters=whole))
