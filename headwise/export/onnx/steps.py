"""`Steps` of models that ONNX Runtime runs. The decoder's past is kept in the output tensors of its last call."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from headwise.export.onnx.session import Session

PAST = "past_"  # prefix of the inputs that are outputs of the previous step


class Reading:
    """A decoder's graph and its past.

    Args:
        decoder: its inputs are ids, constant inputs and a past; its outputs are logits and the next past.
    """

    def __init__(self, decoder: Session) -> None:
        names = [value.name for value in decoder.inputs]
        self.names = [name for name in names if name.startswith(PAST)]
        self._inputs = names
        self._run = decoder.giving("logits", *(name.removeprefix(PAST) for name in self.names))
        self._empty = {value.name: value for value in decoder.inputs if value.name in self.names}
        self.past: list[Tensor] = []

    def read(self, ids: Tensor, given: dict[str, Tensor]) -> Tensor:
        """Logits [rows, S, V] after each of these tokens [rows, S], which follow the tokens read before."""
        past = self.past or [
            torch.empty((len(ids), value.axes[1], 0, value.axes[3]), dtype=value.dtype)  # type: ignore[arg-type]
            for value in self._empty.values()
        ]
        known = given | dict(zip(self.names, past, strict=True))
        logits, *self.past = self._run(ids, *(known[name] for name in self._inputs[1:]))
        return logits

    def reorder(self, order: Tensor) -> None:
        """Reorder the past: row i continues from row order[i]."""
        self.past = [each[order] for each in self.past]


class EncoderDecoderSteps:
    """An encoder's graph, called once, and a decoder's graph, called for each token."""

    def __init__(self, encoder: Session, decoder: Session, source_ids: Tensor, source_real: Tensor) -> None:
        wanted = {value.name for value in decoder.inputs}
        names = [value.name for value in encoder.outputs if value.name in wanted]
        found = dict(zip(names, encoder.giving(*names)(source_ids, source_real), strict=True))
        # By position: version 0.1.0 called the second input source_padding.
        source = dict(zip((value.name for value in encoder.inputs), (source_ids, source_real), strict=True))
        self._given = {name: tensor for name, tensor in (source | found).items() if name in wanted}
        self._reading = Reading(decoder)

    def __call__(self, ids: Tensor) -> Tensor:
        return self.read(ids[:, None])[:, 0]

    def read(self, ids: Tensor) -> Tensor:
        """Logits [rows, Q, V] after each of the next tokens [rows, Q]."""
        return self._reading.read(ids, self._given)

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        self._reading.reorder(order)
        if not same_sources:
            self._given = {name: each[order] for name, each in self._given.items()}


class CausalSteps:
    """A decoder's graph that has read the beginning of a text, so the first step does not read [BOS]."""

    def __init__(self, decoder: Session, begun: Sequence[int]) -> None:
        self._begun = begun
        self._reading = Reading(decoder)

    def __call__(self, ids: Tensor) -> Tensor:
        return self.read(ids[:, None] if self._reading.past else torch.tensor([self._begun]))[:, -1]

    def read(self, ids: Tensor) -> Tensor:
        """Logits [rows, S, V] after each of the next tokens [rows, S]."""
        return self._reading.read(ids, {})

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        self._reading.reorder(order)
