"""Layers of other frameworks as torch modules, and what cannot be found out about them."""

from __future__ import annotations

import importlib

from torch import nn

# The package that defines a class -> the module whose `as_torch` wraps its layers as torch modules. Given by name: the
# doctor does not depend on that package, and imports the module only for such a layer.
_MADE_BY = {"keras": "headwise.keras.as_torch"}


def as_module(layer: object) -> nn.Module | None:
    """The layer itself if it is a torch module, a torch wrapper if it is another framework's layer, else None."""
    if isinstance(layer, nn.Module):
        return layer
    for cls in type(layer).__mro__:
        maker = _MADE_BY.get(cls.__module__.partition(".")[0])
        if maker is not None:
            found: nn.Module = importlib.import_module(maker).as_torch(layer)
            return found
    return None


def seen_from_outside(module: nn.Module) -> str:
    """Why the operations of a module cannot be traced; "" where they can."""
    where = {str(part.runs_on) for part in module.modules() if hasattr(part, "runs_on")}
    if not where:
        return ""
    return f"it runs on {', '.join(sorted(where))}: only its inputs and outputs were examined"
