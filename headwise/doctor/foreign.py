"""Layers of other frameworks as torch modules, and what cannot be found out about them."""

from __future__ import annotations

from typing import cast

from torch import nn

from headwise.registry import framework_of


def as_module(layer: object) -> nn.Module | None:
    """The layer itself if it is a torch module, a torch wrapper if it is another framework's layer, else None."""
    if isinstance(layer, nn.Module):
        return layer
    framework = framework_of(layer)
    return None if framework is None else cast(nn.Module, framework.as_torch(layer))


def seen_from_outside(module: nn.Module) -> str:
    """Why the operations of a module cannot be traced; "" where they can."""
    where = {str(part.runs_on) for part in module.modules() if hasattr(part, "runs_on")}
    if not where:
        return ""
    return f"it runs on {', '.join(sorted(where))}: only its inputs and outputs were examined"
