"""The example of a call: what somebody who knows how to call a module passes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from headwise.errors import DtypeError

Example = tuple[tuple[Any, ...], dict[str, Any]]  # positional and keyword arguments


def as_example(given: Any) -> Example | None:
    """The arguments of a call, from (args, kwargs), a tuple or list of arguments, a dict of arguments, or one tensor.

    Raises DtypeError for anything else.
    """
    match given:
        case None:
            return None
        case [tuple() | list() as args, Mapping() as kwargs] if all(isinstance(name, str) for name in kwargs):
            return tuple(args), dict(kwargs)
        case torch.Tensor():
            return (given,), {}
        case Mapping() if all(isinstance(name, str) for name in given):
            return (), dict(given)
        case tuple() | list():
            return tuple(given), {}
    raise DtypeError(
        "diagnose: example must be the arguments of a call of the module: (args, kwargs), a tuple of arguments, a dict "
        f"of arguments, or one tensor. Received: {type(given).__name__}. Pass for instance example=(x, mask)"
    )
