"""Linear attention divides by the sum of its weights: where all values are 1, each query gets 1, whatever its keys are.

Only where it divides by products of queries and keys: others do not normalise on purpose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.claims import text_of
from headwise.doctor.finding import Finding
from headwise.doctor.patient import NotChecked, Patient
from headwise.doctor.probing.listen import Dispatching
from headwise.doctor.probing.masking import left_padding
from headwise.doctor.probing.probe import ROUNDING, Probe, gap
from headwise.doctor.reading.anatomy import look
from headwise.doctor.reading.marks import tensors_in
from headwise.doctor.reading.projection_names import read_name
from headwise.language import Sentence

FINDINGS = ("normaliser-wrong",)

_OFF = 0.05  # an epsilon in the denominator changes less


def check(patient: Patient) -> Iterator[Finding]:
    """Set all values to 1, and look at what the output projection gets; also where keys are padding."""
    probe = Probe(patient)
    names = None if patient.has_softmax else _projections(probe.module)
    if names is None:
        return
    inputs = probe.inputs(length=6)
    probe.answers(inputs)
    seen = _Divisions(list(inputs.tensors().values()))
    with torch.no_grad(), seen:
        probe.interface.run(inputs)
    divides = seen.found or look(patient).run.exponentials > 0
    text = " ".join(text_of(part) for part in probe.module.modules()).lower()
    if not divides and not any(word in text for word in ("denom", "d_inv", "normalizer", "normaliser")):
        return

    def attended(change: Callable[[Tensor], Tensor], padding: Tensor | None = None) -> Tensor:
        """[B, N, M], where `change` is made to the values: the whole output of a projection, or its last third."""
        kept: list[Tensor] = []

        def changed(_: object, __: object, out: Tensor) -> Tensor:
            start = 0 if read_name(names[0]).letters == "v" else out.shape[-1] // 3 * 2
            return torch.cat((out[..., :start], change(out[..., start:])), -1)

        values, output = map(probe.module.get_submodule, names)
        hooks = (
            values.register_forward_hook(changed),
            output.register_forward_pre_hook(lambda _, given: kept.append(given[0].detach())),
        )
        probe.attempt(inputs, padding=padding)
        for hook in hooks:
            hook.remove()
        if not kept or kept[-1].shape[:2] != inputs.query.shape[:2]:
            raise NotChecked("the input of its output projection has not one row for every query")
        return kept[-1]

    if gap(2 * attended(torch.clone), attended(lambda v: 2 * v)) > ROUNDING:  # the third holds queries and keys
        raise NotChecked("the values are not the last third of its projection")
    rows = attended(torch.ones_like)
    how = "the sum that it divides by is not that of its weights" if divides else "it does not divide by their sum"
    if _off(rows) <= _OFF and any(mask.what == "keys" for mask in probe.interface.masks):
        rows = attended(torch.ones_like, left_padding(inputs))[1, 2:]
        how = "padded keys are left out of the values, and counted in the sum that it divides by"
    if _off(rows) > _OFF and bool(rows.any()):
        yield Finding(
            "normaliser-wrong",
            "bug",
            Sentence("where all values are 1, the attended values are off by up to {off:.2g}: {how}").format(
                off=_off(rows), how=how
            ),
            "divide by the product of each query with the sum of the keys that it attends to: (q * k.cumsum(positions))"
            ".sum(-1) if it is causal, and with the keys of padding set to 0",
            patient.where,
        )


def _off(rows: Tensor) -> float:
    return float((rows - 1).abs().amax())


def _projections(module: nn.Module) -> tuple[str, str] | None:
    """The paths of the projection that makes the values, and of the output projection, if it has no other layers than
    these, and queries and keys.
    """
    parts = dict(module.named_modules())
    roles = {path: read_name(path) for path, part in parts.items() if isinstance(part, nn.Linear)}
    letters = sorted("o" if role.is_output else role.letters for role in roles.values())
    convolved = any(isinstance(part, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) for part in parts.values())
    if letters not in (["k", "o", "q", "v"], ["o", "qkv"]) or convolved:
        return None
    values = next(path for path, role in roles.items() if "v" in role.letters and not role.is_output)
    return values, next(path for path, role in roles.items() if role.is_output)


_PRODUCTS = {"mul", "bmm", "mm", "baddbmm"}
_KEEPING = {"sum", "add", "add_", "cumsum", "reciprocal", "clone", "_to_copy", "copy_", "mul"}


class _Divisions(Dispatching):
    """Whether something is divided by products of two things that depend on the inputs, or by sums of such products.

    Tensors are followed by the memory that they lie in.
    """

    def __init__(self, tokens: Sequence[Tensor]) -> None:
        super().__init__()
        self.live = {_memory(x) for x in tokens}
        self.scores: set[int] = set()  # sums of products of two of them
        self.found = False
        self._kept: list[Tensor] = list(tokens)  # so that no memory is used twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        given = [_memory(x) for x in tensors_in([list(args), kwargs or {}]) if x.is_floating_point()]
        made = [x for x in tensors_in(out) if x.is_floating_point()]
        self._kept += made
        places = {_memory(x) for x in made}
        live = [x for x in given if x in self.live]
        if name == "reciprocal" or (name in ("div", "div_") and isinstance(args[1], Tensor)):
            self.found |= _memory(args[0 if name == "reciprocal" else 1]) in self.scores
        if (name in _PRODUCTS and len(set(live)) > 1) or (name in _KEEPING and any(x in self.scores for x in given)):
            self.scores |= places
        if live:
            self.live |= places
        return out


def _memory(x: Tensor) -> int:
    return x.untyped_storage().data_ptr()
