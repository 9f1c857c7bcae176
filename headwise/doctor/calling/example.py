"""The example of a call: what somebody who knows how to call a module passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from headwise.doctor.calling.forward_arguments import tensors
from headwise.doctor.calling.signature import Parameter
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


@dataclasses.dataclass(frozen=True)
class Given:
    """The arguments of forward, and the values that the example passes for them."""

    parameters: list[Parameter]
    values: dict[str, Any]

    @staticmethod
    def by(example: Example | None, found: list[Parameter]) -> Given:
        """The example's values by name. An argument named like an input, but passed another thing, is unknown."""
        args, kwargs = example or ((), {})
        values = {**dict(zip((p.name for p in found), args, strict=False)), **kwargs}
        roles = [p if _may_be_input(p, values) else dataclasses.replace(p, role="unknown") for p in found]
        return Given(roles, values)

    def of(self, name: str) -> Any:
        """What the example passes for an argument, or None."""
        return self.values.get(name)

    def input(self) -> Tensor | None:
        """The example's input if it is [B, N, M]: that of the queries, or the first one."""
        for p in self.parameters:
            value = self.of(p.name)
            if p.role == "query" and isinstance(value, Tensor) and value.ndim == 3:
                return value
        return next((v for v in self.values.values() if isinstance(v, Tensor) and v.ndim == 3), None)

    def rows(self) -> Tensor | None:
        """The example's input if it is [B, rows, N, M], such as points or an image."""
        for p in self.parameters:
            value = self.of(p.name)
            if p.role == "query" and isinstance(value, Tensor) and value.is_floating_point():
                return value if value.ndim == 4 else None
        return None

    def memory(self, x: Tensor) -> Tensor:
        """The example's keys, beside these queries; the queries themselves if it has no other."""
        others = (self.of(p.name) for p in self.parameters if p.role in ("key", "memory"))
        return next((y for y in others if is_sequence(y) and y is not x), x)

    def holds_distances(self) -> bool:
        """Whether a tuple or list of the example holds a table of relative distances, 2 N - 1 to 2 N + 1 rows for N
        tokens. It fits no other length, although another one may run.
        """
        x = self.input()
        if x is None:
            return False
        rows = {2 * n + more for n in (x.shape[1], self.memory(x).shape[1]) for more in (-1, 0, 1)} - {x.shape[-1], 1}
        nested = (y for value in self.values.values() if type(value) in (tuple, list) for y in tensors(value))
        return any(y.ndim == 2 and y.is_floating_point() and len(y) in rows for y in nested)


def _may_be_input(p: Parameter, values: dict[str, Any]) -> bool:
    """Whether an argument named like an input is no other thing in the example: a dict of states, one number."""
    value = values.get(p.name)
    if p.role not in ("query", "key", "value", "memory") or value is None:
        return not (p.role == "memory" and p.required and p.name in values)
    return value.ndim > 1 if isinstance(value, Tensor) else isinstance(value, (tuple, list))


def is_sequence(value: Any) -> bool:
    """Whether it is [B, N, M] of real numbers."""
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()
