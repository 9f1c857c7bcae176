"""Layers of other frameworks as torch modules, and what cannot be known of those."""

from __future__ import annotations

from typing import cast

from torch import nn

from headwise.registry import framework_of


def as_module(layer: object) -> nn.Module | None:
    """The layer itself where it is a torch module, else one that computes what it does; None where it is no layer."""
    if isinstance(layer, nn.Module):
        return layer
    framework = framework_of(layer)
    return None if framework is None else cast(nn.Module, framework.as_torch(layer))


def seen_from_outside(module: nn.Module) -> str:
    """Why the operations of a module cannot be followed; "" where they can."""
    where = {str(part.runs_on) for part in module.modules() if hasattr(part, "runs_on")}
    if not where:
        return ""
    return f"it runs on {', '.join(sorted(where))}: it was looked at from outside, by what goes in and comes out"
