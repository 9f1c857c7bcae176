"""Layers of other frameworks as torch modules, and what cannot be found out about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import nn

from headwise.doctor.calling.search import first_call
from headwise.registry import find_framework


def as_module(
    layer: object,
    *,
    make: Callable[..., object] | None = None,
    first: Callable[[nn.Module], object] = first_call,
) -> nn.Module | None:
    """The layer itself if it is a torch module, a torch wrapper if it is another framework's layer, else None.

    A layer that gets its weights in its first call is called, by `first`: by trial, each with a new layer of `make`.

    Raises:
        DoctorError: no call that works was found.
        ArgumentError, DtypeError: what the framework does not take.
    """
    framework = find_framework(layer)
    if framework is None or (isinstance(layer, nn.Module) and foreign_backend(layer)):
        return layer if isinstance(layer, nn.Module) else None
    trial = framework.unbuilt(layer, make)
    if trial is not None:
        first(trial)
        layer = trial.layer
    return cast(nn.Module, framework.as_torch(layer))


def foreign_backend(module: nn.Module) -> str:
    """What computes a module whose operations torch does not see, such as "tensorflow"; "" if torch does."""
    return ", ".join(sorted({str(part.runs_on) for part in module.modules() if hasattr(part, "runs_on")}))


def seen_from_outside(module: nn.Module) -> str:
    """Why the operations of a module cannot be traced; "" where they can."""
    backend = foreign_backend(module)
    return f"its operations run on {backend}, and torch does not see them" if backend else ""
