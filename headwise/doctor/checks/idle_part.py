"""Rows or columns of a matrix that never get a gradient and do not change the output: a part of a packed weight.

Whole heads only: single units of an MLP may be inactive for a few tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from headwise.doctor.calling.interface import Inputs
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.probe import Probe
from headwise.doctor.probing.reached import gradients_of, matters, trainable
from headwise.doctor.reading.creation import origin

FINDINGS = ("unused-parameter",)

_DRAWS = 8
_TABLES = re.compile(r"embed|table|pos(ition)?(_|\.|$)|rel(ative)?_|bias|bucket|experts?|token", re.IGNORECASE)


def check(patient: Patient) -> Iterator[Finding]:
    if "projection-zero" in patient.excused:
        raise NotChecked("nothing behind a projection of zeros has a gradient")
    probe = Probe(patient)
    inputs = probe.inputs()
    before = probe.answers(inputs)
    interface = probe.interface
    heads = interface.heads or 1
    embeddings = {
        f"{path}.{name}" if path else name
        for path, part in probe.module.named_modules()
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag))
        for name, _ in part.named_parameters(recurse=False)
    }
    for name, where in patient.reached.there.items():
        if where.ndim == 3 and where.shape[1:] == (interface.width, interface.width):
            yield from _stacked(patient, probe, inputs, before, name, where)
        if where.ndim != 2 or name in embeddings or _TABLES.search(name.removesuffix(".weight")):
            continue
        for dim in (0, 1):
            dead = ~where.any(1 - dim)
            count, of = int(dead.sum()), len(dead)
            head = max(1, interface.width // heads)
            if count == of or not _several(count, of, head):
                continue
            dead &= ~_alive(patient, inputs, name, where.shape).any(1 - dim)
            count = int(dead.sum())
            if not _several(count, of, head):
                continue
            first = int(dead.nonzero()[0])
            change = matters(patient, name, inputs, before, dead[:, None] if dim == 0 else dead[None])
            if change > 0 or name.rpartition(".")[0] in _fed_zeros(probe, inputs):
                continue
            runs = _runs(dead)
            kind = "rows" if dim == 0 else "columns"
            yield Finding(
                "unused-parameter",
                "bug" if count % head == 0 else "risk",
                f"{count} of the {of} {kind} of {name} {list(where.shape)} never get a gradient ({kind} {runs}), and "
                "other numbers there do not change the output: this part of the weight is not used",
                "use every part of the weight once (is another part used in its place?), or make the weight smaller",
                where=origin(probe.module, name),
                numbers={"idle": count, "of": of, "first": first},
            )
            return


def _stacked(
    patient: Patient, probe: Probe, inputs: Inputs, before: Tensor, name: str, where: Tensor
) -> Iterator[Finding]:
    """Matrices that stand in one parameter [4, M, M], of queries, keys, values and outputs, and are not used."""
    dead = ~where.flatten(1).any(1)
    if not dead.any() or dead.all() or _TABLES.search(name):
        return
    dead &= ~_alive(patient, inputs, name, where.shape).flatten(1).any(1)
    if dead.any() and matters(patient, name, inputs, before, dead[:, None, None]) == 0:
        yield Finding(
            "unused-parameter",
            "bug",
            f"{int(dead.sum())} of the {len(dead)} matrices in {name} {list(where.shape)} never get a gradient (number "
            f"{_runs(dead)}, from 0 on), and other numbers there do not change the output",
            "use every matrix once: is another one used in its place?",
            where=origin(probe.module, name),
            numbers={"idle": float(dead.sum()), "of": float(len(dead))},
        )


def _fed_zeros(probe: Probe, inputs: Inputs) -> set[str]:
    """The parts that are given a tensor of zeros, as the first layer of a DETR decoder, whose targets begin as 0,
    or an RNN cell whose state does.
    """
    found: set[str] = set()

    def look(path: str, part: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        tensors = [x for x in tree_leaves((given, named)) if isinstance(x, Tensor) and x.ndim > 1]
        from_zero = isinstance(part, (nn.RNNBase, nn.RNNCellBase)) and len(tensors) == 1
        if from_zero or any(not x.any() for x in tensors):
            found.add(path)

    hooks = [
        part.register_forward_pre_hook(
            lambda part, given, named, path=path: look(path, part, given, named), with_kwargs=True
        )
        for path, part in probe.module.named_modules()
    ]
    probe.attempt(inputs)
    for hook in hooks:
        hook.remove()
    return found


def _several(count: int, of: int, head: int) -> bool:
    return count >= max(2, min(head, of // 4))


def _alive(patient: Patient, inputs: Inputs, name: str, shape: torch.Size) -> Tensor:
    """Where a parameter has a gradient once all parameters have other numbers: a unit that is off may be on then."""
    found = torch.zeros(shape, dtype=torch.bool)
    for seed in range(_DRAWS):
        other = Probe(patient)
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for x in other.module.parameters():  # large numbers on which units act, and small ones for a flat softmax
                size = max(0.1, float(x.abs().amax()) if x.numel() else 0.0) * (1 + 2 * (seed % 2))
                x.add_(torch.randn(x.shape, generator=draw).to(x.dtype) * size)
        found |= (gradients_of(other, inputs, trainable(other)) or {}).get(name, found)
    return found


def _runs(dead: Tensor) -> str:
    """[0, 1, 2, 5] as "0-2, 5"."""
    at = dead.nonzero().flatten().tolist()
    runs: list[list[int]] = []
    for x in at:
        if runs and x == runs[-1][1] + 1:
            runs[-1][1] = x
        else:
            runs.append([x, x])
    said = [f"{a}-{b}" if b > a else str(a) for a, b in runs]
    return ", ".join(said[:4]) + (" …" if len(said) > 4 else "")
