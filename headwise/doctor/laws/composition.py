"""The law that a block is its input and what its parts add to it: x + attention(norm(x)), then h + mlp(norm(h)).

With all weights behind a norm set to 0 only the residual goes on: what the norm was given (pre-norm), or what it gave
(post-norm). A block that does both has lost a residual: `x = norm(x)` overwrote it. If what goes on is an older tensor,
the sum of the input and the attention was not passed on: a variable still holds the input.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.probe import ROUNDING, Probe, gap, moved, sentence
from headwise.doctor.probing.reached import stir
from headwise.doctor.reading.marks import tensors_in
from headwise.language import Sentence

FINDINGS = ("residual-dropped",)

_MOST = 8  # norms


@dataclasses.dataclass
class Tape:
    """What happened in a call."""

    # Path, what it was given, and what it gave.
    norms: list[tuple[str, Tensor, Tensor]] = dataclasses.field(default_factory=list)
    fed: list[tuple[int, Tensor]] = dataclasses.field(default_factory=list)  # what met weights, behind how many norms
    first: dict[str, int] = dataclasses.field(default_factory=dict)  # weight -> behind how many norms it was first used
    out: Tensor = dataclasses.field(default_factory=lambda: torch.empty(0))

    def stream(self, norm: int) -> Tensor:
        """What goes on behind a norm: to the next one that is given anything, or to the output."""
        later = (given for _, given, _ in self.norms[norm + 1 :] if given.any())
        return next(later, self.out)

    def feeds(self, norm: int) -> bool:
        """Whether weights are multiplied with what a norm gave, before the next norm."""
        return any(at == norm + 1 and alike(x, self.norms[norm][2]) for at, x in self.fed)


def check(patient: Patient) -> Iterator[Finding]:
    inputs = Probe(patient).inputs()
    tape = listen(patient, inputs)
    count = min(len(tape.norms), _MOST)
    if not count:
        raise NotApplicable("it has no norms")
    silent = {n: listen(patient, inputs, {x for x, at in tape.first.items() if at > n}) for n in range(-1, count)}
    if any(len(x.norms) != len(tape.norms) for x in silent.values()):
        raise NotChecked("which of its norms are used depends on its weights")
    feeding = [n for n in range(count) if tape.feeds(n)]
    kept = [n for n in feeding if alike(silent[n].stream(n), tape.norms[n][1])]
    normed = [n for n in feeding if alike(silent[n].stream(n), tape.norms[n][2])]
    if patient.anatomy is None or len(patient.anatomy.sites) != 1:
        normed = [n for n in normed if n]  # the first norm of a model may be that of its embeddings
    if kept and normed:
        yield _dropped(
            patient,
            Sentence(
                "with all projections set to 0, what goes on behind {behind} is its output, and behind {before} its "
                "input: the residual was overwritten by the norm"
            ).format(behind=tape.norms[normed[0]][0], before=tape.norms[kept[0]][0]),
            "keep the input: residual = x, then residual + attention(norm(x))",
        )
        return
    given = {-1: inputs.query, **{n: tape.norms[n][1] for n in range(count)}}
    for n in feeding:
        older = next((i for i in range(-1, n) if alike(silent[n].stream(n), given[i])), None)
        if older is None or n in kept or not alike(silent[older].norms[n][1], given[older]):
            continue
        after = listen(patient, moved(inputs, 0, 1, queries=True)).norms[n][1]
        if after.shape == given[n].shape and int((after != given[n]).any(-1).sum()) > 1:  # it adds an attention
            yield _dropped(
                patient,
                Sentence(
                    "the sum of a residual and an attention is given to {norms}, and is not passed on: with all "
                    "weights behind this norm set to 0, what goes on is the residual without the attention"
                ).format(norms=tape.norms[n][0]),
                "add the sum: h = x + attention(norm(x)), then h + mlp(norm(h)); renew the residual before each part",
            )
            return


def _dropped(patient: Patient, evidence: str, fix: str) -> Finding:
    return Finding("residual-dropped", "bug", evidence, fix, patient.where)


def listen(patient: Patient, inputs: Inputs, zero: set[str] | None = None) -> Tape:
    """Call a copy of the module and note what its norms do. The weights `zero` are 0, those of norms random numbers, so
    that a norm of a norm is another one. NotChecked if it does not run.
    """
    probe, tape = Probe(patient), Tape()
    norms = {part: path for path, part in probe.module.named_modules() if path and _is_norm(part)}
    for part in norms:
        stir(part.parameters(), 17, 0.3)
        part.register_forward_hook(lambda part, given, out: _note(tape, norms[part], given, out))
    weights = dict(probe.module.named_parameters())
    for path in norms.values():
        weights = {name: x for name, x in weights.items() if not name.startswith(f"{path}.")}
    with torch.no_grad():
        for name in zero or ():
            weights[name].zero_()
    with _Weights(tape, {x.untyped_storage().data_ptr(): name for name, x in weights.items()}):
        out = probe.attempt(inputs)
    if isinstance(out, Exception):
        raise NotChecked("it does not run this way: {sentence}", sentence=sentence(out))
    tape.out = out
    return tape


def _note(tape: Tape, path: str, given: tuple[Any, ...], out: Any) -> None:
    if given and isinstance(given[0], Tensor) and isinstance(out, Tensor):
        tape.norms.append((path, given[0].detach().clone(), out.detach().clone()))


def _is_norm(part: nn.Module) -> bool:
    """Whether it is a norm, by its name, and has no parts."""
    parts = [x for x in part.children() if not isinstance(x, (nn.ParameterList, nn.ParameterDict))]
    return "norm" in type(part).__name__.lower() and not parts


class _Weights(TorchFunctionMode):
    """Notes when each weight is first used, and what it meets."""

    def __init__(self, tape: Tape, places: dict[int, str]) -> None:
        super().__init__()
        self.tape, self.places = tape, places

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [x for x in tensors_in((args, kwargs)) if x.layout == torch.strided]
        names = [self.places.get(x.untyped_storage().data_ptr()) for x in tensors]
        at = len(self.tape.norms)
        for name in filter(None, names):
            self.tape.first.setdefault(name, at)
        if any(names):
            met = (x for x, name in zip(tensors, names, strict=True) if name is None and x.ndim > 1)
            self.tape.fed += [(at, x.detach().clone()) for x in met if x.is_floating_point()]
        return func(*args, **kwargs)


def alike(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors hold the same numbers, in whatever order: [B, N, M] and [N, B, M]."""
    return a.numel() == b.numel() and gap(a.flatten().sort().values, b.flatten().sort().values) < ROUNDING
