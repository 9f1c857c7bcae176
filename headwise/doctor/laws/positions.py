"""Positions that change nothing: tables that are read and not used, or that run over another axis than the sequence.

Without positions attention does not know the order of its keys: the last query of a module with one attention gives the
same output when two earlier tokens change places. If the module has positions, it must not.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from torch import Tensor, nn

from headwise.doctor.finding import Finding
from headwise.doctor.patient import Patient
from headwise.doctor.probing.probe import REACHED, Probe, gap
from headwise.doctor.probing.reached import stir
from headwise.doctor.reading.creation import by_setting
from headwise.language import Sentence

FINDINGS = ("positions-ignored",)

_NAMES = re.compile(
    r"rotary|(^|_)rope($|_)|inv_freq|freqs_cis|(cos|sin)_cached|alibi|slopes|rel(ative)?_?pos|pos_?(emb|enc|bias)"
    r"|rel(ative)?_?(attn|attention)?_?bias",
    re.I,
)


def check(patient: Patient) -> Iterator[Finding]:
    """Let the first two tokens change places, and look at the last output."""
    has = _positions(patient)
    if not has or "positions-ignored" in patient.excused or _biased_mask(patient) or _alike(patient):
        return
    # Keys that are given apart, or a fixed length, cannot be exchanged so; with several attentions the order of tokens
    # matters without positions, too.
    if patient.interface.takes != "self" or patient.interface.length or len(patient.see().sites) != 1:
        return
    if not bool((patient.see().sites[0].attended(patient.see().inputs.key_length)[-1, :2] > 0).all()):
        return
    probe = Probe(patient)
    stir(probe.module.parameters())
    inputs = probe.inputs()
    out = probe.answers(inputs)
    others = probe.attempt(inputs.each(lambda x: x[:, [1, 0, *range(2, x.shape[1])]]))
    if not isinstance(others, Tensor) or out.shape[1] != inputs.query.shape[1]:
        return
    change = gap(out[:, -1:], others[:, -1:])
    if change <= REACHED * 10:
        yield Finding(
            "positions-ignored",
            "bug",
            Sentence(
                "it has positions ({has}), but when the first two tokens change places, the output of the last one "
                "stays the same (within {change:.0e}): its scores do not depend on where a key stands"
            ).format(has=has, change=change),
            "apply them along the sequence: for RoPE on queries and keys [B, H, N, D] the tables are [N, D]",
        )


def _positions(patient: Patient) -> str:
    """The name of its positions: a buffer, a parameter, a submodule, or an argument that has to be given; "" if it has
    none.
    """
    held = [name for name, _ in (*patient.module.named_buffers(), *patient.module.named_parameters())]
    held += [name for name, part in patient.module.named_modules() if name and not isinstance(part, nn.Identity)]
    for name in held:
        if _NAMES.search(name.rpartition(".")[2]):
            return name
    way = patient.interface.way
    passed = {name for _, name in way.slots} | {name for name, _ in way.extras}
    arguments = inspect.signature(patient.module.forward).parameters
    absent = {name for name, x in arguments.items() if name not in passed and (x.default is None or x.default is False)}
    # A layer may have none (NoPE), or only beside tables of angles.
    return next((name for name in _given(patient) if not by_setting(patient.module, name, absent)), "")


def _given(patient: Patient) -> dict[str, list[Tensor]]:
    """The tensors of each argument that holds positions. (A number is where a call begins.)"""
    interface = patient.interface
    at = interface.way.sizes(interface.inputs())
    made = {name: make(at) for name, make in interface.way.extras if interface.roles.get(name) == "positions"}
    lists = {name: value if isinstance(value, (tuple, list)) else [value] for name, value in made.items()}
    tensors = {name: [x for x in values if isinstance(x, Tensor)] for name, values in lists.items()}
    return {name: found for name, found in tensors.items() if found}


def _alike(patient: Patient) -> bool:
    """Whether the first two tokens are given the same positions, as those of a call in which many are alike."""
    length = patient.interface.way.sizes(patient.interface.inputs()).queries
    given = [x for tensors in _given(patient).values() for x in tensors]
    pairs = [(x.select(i, 0), x.select(i, 1)) for x in given for i, size in enumerate(x.shape) if size == length]
    return bool(pairs) and not any(bool((one != other).any()) for one, other in pairs)


def _biased_mask(patient: Patient) -> bool:
    """Whether the call that was given has a mask with numbers other than 0 and a fill value: they may be positions."""
    _, kwargs = patient.example or ((), {})
    return any(
        isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 4 and bool(((x != 0) & (x.abs() < 1e3)).any())
        for name, x in kwargs.items()
        if "mask" in name
    )
