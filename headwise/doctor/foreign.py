"""Layers of other frameworks as torch modules, and what cannot be known of those."""

from __future__ import annotations

import importlib

from torch import nn

# The package that a class is from, and the module whose `as_torch` makes a torch module of its layers. By name, because
# the doctor knows nothing of them: that module is imported when such a layer comes.
_MADE_BY = {"keras": "headwise.keras.as_torch"}


def as_module(layer: object) -> nn.Module | None:
    """The layer itself where it is a torch module, else one that computes what it does; None where it is no layer."""
    if isinstance(layer, nn.Module):
        return layer
    for cls in type(layer).__mro__:
        maker = _MADE_BY.get(cls.__module__.partition(".")[0])
        if maker is not None:
            found: nn.Module = importlib.import_module(maker).as_torch(layer)
            return found
    return None


def seen_from_outside(module: nn.Module) -> str:
    """Why the operations of a module cannot be followed; "" where they can."""
    where = {str(part.runs_on) for part in module.modules() if hasattr(part, "runs_on")}
    if not where:
        return ""
    return f"it runs on {', '.join(sorted(where))}: it was looked at from outside, by what goes in and comes out"
