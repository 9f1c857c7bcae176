"""A part that adds its input to its output, where its caller adds the input again: x + (x + attention(norm(x))).

With all its projections set to 0 such a part gives its input. That its caller adds the same two tensors is seen in the
call of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.checks.residual_normed import left_without_projections
from headwise.doctor.finding import Finding
from headwise.doctor.parts import attends
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.listen import Calls
from headwise.doctor.probing.probe import Probe

FINDINGS = ("residual-doubled",)

_ADD = {torch.add, Tensor.add, Tensor.add_, Tensor.__add__, Tensor.__radd__, Tensor.__iadd__}


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    parts = {part: name for name, part in probe.module.named_modules() if name and attends(type(part))}
    if not parts:
        raise NotApplicable("none of its parts is an attention")
    calls: dict[nn.Module, tuple[tuple[Any, ...], dict[str, Any], Tensor]] = {}

    def keep(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        given = args[0] if args else None
        if isinstance(given, Tensor) and isinstance(out, Tensor) and given.shape == out.shape:
            calls.setdefault(part, (args, kwargs, out))

    hooks = [part.register_forward_hook(keep, with_kwargs=True) for part in parts]
    with Calls(_ADD, _sum) as sums:
        probe.attempt(probe.inputs())
    for hook in hooks:
        hook.remove()
    for part, (args, kwargs, out) in calls.items():
        if _were_added(sums.noted, args[0], out) and left_without_projections(part, (args, kwargs)) == "input":
            yield Finding(
                "residual-doubled",
                "bug",
                f"with its projections set to 0, {parts[part]} gives its input: it adds its residual itself. Its "
                "caller adds the same input to its output again, so that it counts twice",
                "add the residual in one of the two places",
                patient.where,
            )
            return


def _sum(a: Any, b: Any, *, alpha: float = 1) -> tuple[Any, Any]:
    """The two, as objects; kept, so that no other tensor has their identity."""
    return (a, b) if alpha == 1 else (None, None)


def _were_added(pairs: list[tuple[Any, Any]], a: Tensor, b: Tensor) -> bool:
    return any((x is a and y is b) or (x is b and y is a) for x, y in pairs)
