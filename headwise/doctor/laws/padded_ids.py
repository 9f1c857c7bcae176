"""What stands in padding does not reach the outputs of a module that knows from its ids which tokens are padding.

The embeddings are given by place, whatever the ids are, so that two calls differ by the mask alone. With one embedding
for all tokens the scores show how the mask acts. With noise, other numbers in padding must not change the real tokens.
One that is meant for padding on one side alone may read it on the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from headwise.doctor.calling.copying import at_rest
from headwise.doctor.calling.token_ids import is_on_embeddings
from headwise.doctor.calling.way import tensors_in
from headwise.doctor.finding import Finding
from headwise.doctor.laws.masked_scores import misled
from headwise.doctor.patient import NotApplicable, NotChecked, Patient
from headwise.doctor.probing.masking import convolving
from headwise.doctor.probing.probe import REACHED, ROUNDING, quiet, rows
from headwise.doctor.reading.events import Softmax
from headwise.doctor.reading.mask_cells import compare
from headwise.doctor.reading.trace import trace
from headwise.language import Sentence

FINDINGS = ("mask-added", "mask-broadcast", "mask-multiplied", "padding-read")

_LENGTHS, _PADDED = (6, 8), 2  # of the queries' ids, and of a memory's
_MOST = 4096


def check(patient: Patient) -> Iterator[Finding]:
    told = bool(patient.interface.masks)
    if not is_on_embeddings(patient.module):  # asked after its interface, which may put it on embeddings
        raise NotApplicable("it takes no token ids")
    ids = Ids(patient)
    try:
        found = list(ids.scores()) or ([] if told else list(ids.outputs()))
    except NotChecked:
        raise
    except Exception as error:
        raise NotChecked(
            Sentence("it does not run on ids with padding: {name}").format(name=type(error).__name__)
        ) from None
    yield from found


class Ids:
    """A module as it was given, and the ids that it gets."""

    def __init__(self, patient: Patient) -> None:
        interface = patient.interface
        slots = {role: n for role, n in interface.way.slots if not n[0].isdigit() and "." not in n}
        if interface.takes == "qkv" or "query" not in slots:
            raise NotApplicable("its ids are not one sequence, or a source and a target")
        self.where, self.module, self.pad = patient.where, patient.original, pad_of(patient.original)
        self.crosses, self.hides = "memory" in slots, False
        self.last = slots.get("memory", slots["query"])  # the sequence whose keys are hidden
        self.real = {
            n: real_ids(self.module, self.pad, interface.length or _LENGTHS[role != "query"])
            for role, n in slots.items()
        }

    @property
    def length(self) -> int:
        return self.real[self.last].shape[1]

    def padded(self, place: slice) -> dict[str, Tensor]:
        """The ids with padding in this place of the last sequence."""
        ids = self.real[self.last].clone()
        ids[:, place] = self.pad
        return {**self.real, self.last: ids}

    def copy(self, given: dict[str, Tensor], places: Tensor) -> nn.Module:
        """A copy whose embeddings of the given ids are those of `places`, [N, width], for every id and table."""

        def replaced(_: nn.Module, inputs: tuple[Any, ...], out: Tensor) -> Tensor | None:
            ids = inputs[0] if inputs else None
            same = isinstance(ids, Tensor) and any(ids.shape == x.shape and torch.equal(ids, x) for x in given.values())
            return places[: out.shape[1], : out.shape[2]].to(out).expand_as(out).clone() if same else None

        twin = at_rest(self.module).cpu()
        for part in twin.modules():
            if isinstance(part, nn.Embedding):
                part.register_forward_hook(replaced)
        return twin

    def scores(self) -> Iterator[Finding]:
        """How the mask that it makes of its ids acts on the first scores of as many queries as keys."""
        padded = self.padded(slice(-_PADDED, None))
        told, other = (self._softmax(x) for x in (padded, self.real))
        if told is None or other is None or told.scores.shape != other.scores.shape:
            return
        before, after = (x.scores.double().flatten(0, -3)[:, None] for x in (other, told))
        hidden = torch.zeros(self.length, dtype=torch.bool)
        hidden[-_PADDED:] = True
        act = compare(before, after, hidden, hidden[:, None])
        self.hides = act.kind == "right"
        if act.kind in ("queries", "added", "multiplied"):
            yield misled(act, "the mask that it makes of its token ids", told.where)

    def _softmax(self, given: dict[str, Tensor]) -> Softmax | None:
        twin = self.copy(given, torch.full((self.length, _MOST), 0.5))
        run = trace(twin, (), lambda: twin(**given), lambda result: next(x for _, x in tensors_in(result)))
        square = (x for x in run.softmaxes if x.scores.shape[-2:] == (self.length, self.length))
        return next((x for x in square if x.dims == (x.scores.ndim - 1,)), None)

    def outputs(self) -> Iterator[Finding]:
        """Whether other numbers in padding change the outputs of real tokens: after them, and before them."""
        if self.crosses and not self.hides:
            return
        if convolving(self.module):
            raise NotChecked("it brings the numbers of one token to its neighbours by convolutions or an RNN")
        after = self._changes(slice(-_PADDED, None))
        before = after if self.crosses else self._changes(slice(0, _PADDED))
        if not after or not before:
            raise NotApplicable("its output does not depend on which ids are padding")
        if min(max(after), max(before)) <= (ROUNDING if self.crosses else REACHED):
            return
        of_zeros = any(x.padding_idx == self.pad for x in self.module.modules() if isinstance(x, nn.Embedding))
        attended = not self.crosses and of_zeros and min(*after, *before) > REACHED  # SASRec attends to rows of zeros
        yield Finding(
            "padding-read",
            "risk" if attended else "bug",
            Sentence(
                "the mask that it makes of {last}'s ids hides padding inside the encoder, and not from the decoder: "
                "other numbers in the padding change the output by up to {after:.2g} of its size"
            ).format(last=self.last, after=max(after))
            if self.crosses
            else Sentence(
                "other numbers in the embeddings of padding (id {pad}) change the output of the real tokens, by "
                "{after:.2g} of its size with {padded} tokens of padding after them and by {before:.2g} with {padded} "
                "before them"
            ).format(pad=self.pad, after=max(after), padded=_PADDED, before=max(before)),
            "mask the keys that are padding, in cross-attention too, pool over real tokens alone, and count positions "
            "of tokens from 0",
            self.where,
        )

    def _changes(self, place: slice) -> list[float]:
        """How far each token of padding in this place changes the real tokens; none if it is not taken for padding."""
        padded = self.padded(place)
        draw = torch.Generator().manual_seed(0)
        usual, others = (torch.randn(self.length, _MOST, generator=draw) for _ in range(2))
        hidden = list(range(self.length))[place]
        shown = [n for n in range(self.length) if n not in hidden]

        def output(given: dict[str, Tensor], other: int | None = None) -> Tensor:
            places = usual.clone()
            if other is not None:
                places[other] = others[other]
            with quiet(), torch.no_grad():
                out = next(x for _, x in tensors_in(self.copy({self.last: given[self.last]}, places)(**given)))
            return out[:, shown] if out.ndim > 2 and out.shape[1] == self.length and not self.crosses else out

        told = output(padded)
        if not bool(told.isfinite().all()) or torch.equal(told, output(self.real)):
            return []
        return [float(rows(told, output(padded, n)).amax()) for n in hidden]


def real_ids(module: nn.Module, pad: int, length: int) -> Tensor:
    """[2, N]: ids that are no padding; 0, and the last of the smallest table, are used only if there are no others."""
    below = min(part.num_embeddings for part in module.modules() if isinstance(part, nn.Embedding))
    usual = [i for i in range(1, below - 1) if i != pad] or [i for i in range(below) if i != pad] or [0]
    return torch.tensor([[usual[(5 * b + 3 * i + 1) % len(usual)] for i in range(length)] for b in range(2)])


def pad_of(module: nn.Module) -> int:
    """The id of padding: one that the module holds, or that of its table, or 0."""
    own = [part for part in module.modules() if not type(part).__module__.startswith("torch.")]
    held = [x for part in own for name, x in vars(part).items() if type(x) is int and x >= 0 and _is_pad(name)]
    held += [x for x in (getattr(module, "pad", None),) if type(x) is int and x >= 0]
    tables = [x.padding_idx for x in module.modules() if isinstance(x, nn.Embedding) and x.padding_idx is not None]
    return next(iter([*held, *tables]), 0)


def _is_pad(name: str) -> bool:
    """Whether an attribute is called `pad_idx`, `src_pad_token_id` or the like."""
    name = name.lower().replace("_", "").replace("token", "").replace("padding", "pad")
    return name.endswith(("padid", "padidx", "padindex"))
