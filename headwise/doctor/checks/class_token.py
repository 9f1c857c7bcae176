"""Whether the class token is what is read out, and neither a register that stands beside it nor a token of the input.

With every block left out, a head that reads one position depends on what was put there: on the class token, which is
named so, and not on a register (Darcet et al. 2023) or on the first patch.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling.claims import text_of
from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.parts import attends
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, moved

FINDINGS = ("class-token-unread",)

_CLASS = re.compile(r"(^|[_.])(cls|class)(_?(tokens?|embed\w*|emb))?$", re.IGNORECASE)
_DROPPED = re.compile(r"registers?\b[^.]*\b(discarded|dropped|removed|cut off|thrown away)", re.IGNORECASE)
_REGISTER = re.compile(r"(^|[_.])reg(ister)?s?(_?tokens?|_?embed\w*)?$", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    probe = Probe(patient)
    parameters = dict(probe.module.named_parameters())
    read = next((name for name in parameters if _CLASS.search(name)), None)
    beside = next((name for name in parameters if _REGISTER.search(name)), None)
    blocks = [x for x in probe.module.modules() if x is not probe.module and _is_block(x)]
    if read is None or not blocks:
        raise NotApplicable("it has no class token")
    for block in blocks:
        block.register_forward_hook(lambda _, args, __: args[0])
    inputs = probe.inputs()
    before = probe.answers(inputs)
    if before.shape[1] == inputs.query.shape[1]:
        raise NotChecked("its output is that of all tokens")
    if beside is None:
        yield from _of_a_token(patient, probe, inputs, before, parameters[read], read)
        return
    depends = {name: _change(probe, inputs, before, parameters[name]) > ROUNDING for name in (read, beside)}
    dropped = _DROPPED.search(text_of(probe.module))
    if depends[beside] and depends[read] and dropped:
        yield Finding(
            "class-token-unread",
            "bug",
            f"its text says that registers are {dropped[1]}; with its blocks left out, the output depends on {beside}",
            "cut the registers where they were put: at the end, x[:, :-count], or behind the class token",
            patient.where,
        )
    elif depends[beside] and not depends[read]:
        yield Finding(
            "class-token-unread",
            "bug",
            f"with its blocks left out, the output depends on {beside} and not on {read}: it is read where a register "
            "stands",
            "read the class token where it was put: x[:, number of registers], or put it first",
            patient.where,
        )


def _of_a_token(
    patient: Patient, probe: Probe, inputs: Inputs, before: Tensor, learned: Tensor, name: str
) -> Iterator[Finding]:
    """Whether one token of the input is read, and the class token is not."""
    if _change(probe, inputs, before, learned) > ROUNDING:
        return
    count = inputs.query.shape[1]
    tokens = (0, count // 2, count - 1)
    reached = [n for n in tokens if gap(before, probe.output(moved(inputs, slice(None), n))) > ROUNDING]
    if len(reached) == 1:
        yield Finding(
            "class-token-unread",
            "bug",
            f"with its blocks left out, the output depends on token {reached[0]} of the input alone, and not on "
            f"{name}: another position is read than that of the class token",
            "read the class token where it was put: x[:, 0] if it is the first",
            patient.where,
        )


def _is_block(part: nn.Module) -> bool:
    """Whether it is a part with attention, or one of torch's layers."""
    if attends(type(part)) or isinstance(part, nn.TransformerEncoder | nn.TransformerEncoderLayer):
        return True
    named = re.search(r"block|layer", type(part).__name__, re.IGNORECASE)
    return named is not None and any(attends(type(x)) for x in part.modules())


def _change(probe: Probe, inputs: Inputs, before: Tensor, x: Tensor) -> float:
    """How far the output changes with other numbers in a parameter."""
    kept = x.detach().clone()
    with torch.no_grad():
        x.add_(torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(x))
        after = probe.output(inputs)
        x.copy_(kept)
    return gap(before, after)
