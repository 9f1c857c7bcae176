"""Positions that change nothing: tables that are read and not used, or that run over another axis than the sequence.

Without positions attention does not know the order of its keys: the last query of a module with one attention gives the
same output when two earlier tokens change places. If the module has positions, it must not.
"""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from headwise.doctor.calling import names
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import REACHED, ROUNDING, Probe, gap
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.creation import by_setting
from headwise.doctor.reading.scale import behind_the_product, off_its_mean, open_cells

FINDINGS = ("positions-ignored",)

_NAMES = re.compile(
    r"rotary|(^|_)rope($|_)|inv_freq|freqs_cis|alibi|slopes|rel(ative)?_?pos|pos_?(emb|enc|bias)"
    r"|rel(ative)?_?(attn|attention)?_?bias",
    re.I,
)
_TABLE = re.compile(r"(attn|attention|pos|position|rel|relative)_?bias", re.I)
_NOT_READ = re.compile(r"\b(unused|not used|ignored|compatib|deprecated)", re.I)
_LENGTH = 10


def check(patient: Patient) -> Iterator[Finding]:
    if (unread := _unread(patient)) is not None:
        yield unread
        return
    has = _positions(patient)
    if not has:
        raise NotApplicable("it has no positions of its own")
    if "positions-ignored" in patient.excused:
        raise NotApplicable("its table runs over another axis, which is told")
    if _biased_mask(patient):
        raise NotApplicable("the mask that it is given carries a bias, which may be its positions")
    if patient.interface.takes != "self" or patient.interface.length:
        raise NotApplicable("its keys are given apart from its queries, or its length is fixed")
    if len(patient.see().sites) != 1:
        yield from _of_several(patient, has)
        return
    if not bool((patient.see().sites[0].attended(patient.see().inputs.key_length)[-1, :2] > 0).all()):
        raise NotApplicable("its last token does not attend to the first two")
    if _alike(patient):
        raise NotApplicable("the positions that it is given are the same for the first two tokens")
    probe = Probe(patient)
    _stirred(probe.module)
    inputs = probe.inputs()
    out = probe.answers(inputs)
    others = probe.attempt(inputs.each(_swapped))
    if not isinstance(others, Tensor) or out.shape[1] != inputs.query.shape[1]:
        return
    change = gap(out[:, -1:], others[:, -1:])
    if change <= REACHED * 10:
        yield Finding(
            "positions-ignored",
            "bug",
            f"it has positions ({has}), but when the first two tokens change places, the output of the last one stays "
            f"the same (within {change:.0e}): its scores do not depend on where a key stands",
            "apply them along the sequence: for RoPE on queries and keys [B, H, N, D] the tables are [N, D]",
            numbers={"change": change},
        )


def _unread(patient: Patient) -> Finding | None:
    """Positions that its text says forward takes, and that forward never reads."""
    forward = inspect.unwrap(type(patient.module).forward)
    if patient.is_library or not inspect.isfunction(forward):
        return None
    read = {x.argval for x in dis.get_instructions(forward) if x.opname.startswith("LOAD")}
    text = "\n".join(inspect.getdoc(x) or "" for x in (type(patient.module), forward))
    for name in inspect.signature(forward).parameters:
        named = re.search(rf"\b{re.escape(name)}\b", text)
        if names.role(name) == "positions" and name not in read and named and not _NOT_READ.search(text):
            return Finding(
                "positions-ignored",
                "bug",
                f"its text says what {name} is, and forward never reads it",
                f"add {name} to the queries or the keys that it belongs to, or remove the argument",
                patient.where,
            )
    return None


def _of_several(patient: Patient, has: str) -> Iterator[Finding]:
    """Whether a table of biases adds the same number to all scores of a row, in every one of several attentions.

    There the scores are the products times a factor, and a number for each row, which the softmax ignores.
    """
    if not _TABLE.search(has):
        raise NotApplicable("with several attentions the order of tokens matters without positions, too")
    sites, twins = (look(patient, seed=seed, length=_LENGTH, change=_stirred).sites for seed in (0, 1))
    if not sites or len(sites) != len(twins) or any(x.grid is None for x in (*sites, *twins)):
        raise NotChecked("its attentions cannot be compared")
    largest = 0.0
    for site, twin in zip(sites, twins, strict=True):
        factor = behind_the_product(site, twin)
        if factor is None or site.scores.shape[-1] != _LENGTH:
            raise NotChecked("its scores are no products with a bias added")
        added = site.scores - factor * site.products
        valid = open_cells(site, twin) & added.isfinite()
        rest = off_its_mean(added, valid)[valid]
        largest = max(largest, float(rest.abs().max() / site.scores[valid].abs().max()))
    if largest < ROUNDING:
        yield Finding(
            "positions-ignored",
            "bug",
            f"it has positions ({has}), but in each of its {len(sites)} attentions they add the same number to all "
            f"scores of a row (within {largest:.0e} of the largest score), which the softmax ignores: a score does "
            "not depend on where its key stands",
            "look up the distance from the query back to the key: T5's relative position is key - query",
            sites[0].softmax.where,
            numbers={"change": largest},
        )


def _stirred(module: nn.Module) -> None:
    """Other numbers in all parameters: tables may begin with 0."""
    draw = torch.Generator().manual_seed(13)
    with torch.no_grad():
        for x in module.parameters():
            if x.is_floating_point():
                x.add_(0.1 * torch.randn(x.shape, generator=draw).to(x.dtype))


def _positions(patient: Patient) -> str:
    """The name of its positions: a buffer, a parameter, a submodule, or an argument that has to be given."""
    held = [name for name, _ in (*patient.module.named_buffers(), *patient.module.named_parameters())]
    held += [name for name, part in patient.module.named_modules() if name and not isinstance(part, nn.Identity)]
    for name in held:
        if _NAMES.search(name.rpartition(".")[2]):
            return name
    interface = patient.interface
    at = interface.way.sizes(interface.inputs())
    values = {name: make(at) for name, make in interface.way.extras if interface.roles.get(name) == "positions"}
    given = [name for name, x in values.items() if isinstance(x, (Tensor, tuple, list))]  # 0 is where a call begins
    passed = {name for _, name in interface.way.slots} | {name for name, _ in interface.way.extras}
    arguments = inspect.signature(patient.module.forward).parameters
    absent = {name for name, x in arguments.items() if name not in passed and (x.default is None or x.default is False)}
    # A layer may have none (NoPE), or only beside tables of angles.
    return next((name for name in given if not by_setting(patient.module, name, absent)), "")


def _alike(patient: Patient) -> bool:
    """Whether the first two tokens are given the same positions, as those of a call in which many are alike."""
    interface = patient.interface
    at = interface.way.sizes(interface.inputs())
    made = [make(at) for name, make in interface.way.extras if interface.roles.get(name) == "positions"]
    tables = [x for value in made for x in (value if isinstance(value, (tuple, list)) else (value,))]
    tables = [x for x in tables if isinstance(x, Tensor) and at.queries in x.shape]
    return bool(tables) and not any(
        bool((x.select(dim, 0) != x.select(dim, 1)).any())
        for x in tables
        for dim, size in enumerate(x.shape)
        if size == at.queries
    )


def _biased_mask(patient: Patient) -> bool:
    """Whether the call that was given has a mask with numbers other than 0 and a fill value."""
    _, kwargs = patient.example or ((), {})
    return any(
        isinstance(x, Tensor) and x.is_floating_point() and x.ndim == 4 and bool(((x != 0) & (x.abs() < 1e3)).any())
        for name, x in kwargs.items()
        if "mask" in name
    )


def _swapped(x: Tensor) -> Tensor:
    order = [1, 0, *range(2, x.shape[1])]
    return x[:, order]
