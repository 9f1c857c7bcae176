"""Tokens that are taken apart before the projections: `reshape(b, h * w, c)` of a map [b, c, h, w].

The reshape runs, and each row that is projected then holds some features of several tokens. One token is changed, with
norms replaced by the identity: its numbers must not lie scattered over several rows of a linear layer's input.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, Patient
from headwise.doctor.probing.probe import Probe, moved

FINDINGS = ("token-split",)

_TOKEN = 1


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    if patient.interface.takes != "self":
        raise NotApplicable("its queries and keys are not one sequence")
    for part in probe.module.modules():
        if "norm" in type(part).__name__.lower() and not list(part.children()):
            part.forward = _same
    inputs = probe.inputs()
    before = _read(probe, inputs)
    after = _read(probe, moved(inputs, 0, _TOKEN, queries=True))
    width = inputs.query.shape[-1]
    for name, x in before.items():
        y = after.get(name)
        if y is None or x.shape != y.shape or x.ndim < 2:
            continue
        changed = (x != y).flatten(0, -2)  # [rows, C]
        rows = changed[changed.any(-1)]
        apart = len(rows) > 1 and int(changed.sum()) == width and not bool(rows.all(-1).any())
        if apart and not bool((rows == rows[0]).all()):
            yield Finding(
                "token-split",
                "bug",
                f"the {width} numbers of one token are scattered over {len(rows)} rows of what {name} projects: each "
                "row holds features of several tokens",
                "move the channels last before the reshape: x.flatten(2).transpose(1, 2) of a map [B, C, H, W]",
                numbers={"rows": float(len(rows))},
            )
            return


def _same(x: Tensor, *_: Any, **__: Any) -> Tensor:
    return x


def _read(probe: Probe, inputs: Any) -> dict[str, Tensor]:
    """What the first call of each linear layer takes."""
    found: dict[str, Tensor] = {}

    def keep(_: nn.Module, given: tuple[Any, ...], name: str) -> None:
        if given and isinstance(given[0], Tensor):
            found.setdefault(name, given[0].detach().clone())

    hooks = [
        part.register_forward_pre_hook(functools.partial(keep, name=name))
        for name, part in probe.module.named_modules()
        if isinstance(part, nn.Linear)
    ]
    probe.attempt(inputs)
    for hook in hooks:
        hook.remove()
    return found
