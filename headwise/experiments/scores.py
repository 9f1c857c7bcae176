"""Scores heads on a repeated random block: induction, previous token, duplicate token (Olsson et al. 2022)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from headwise.analyses import pattern_scores, repeated_block
from headwise.capture.context import watch
from headwise.capture.vocabulary import vocabulary_size
from headwise.errors import ArgumentError
from headwise.experiments.running import run
from headwise.experiments.sweeping import strongest
from headwise.records import Seen
from headwise.records.names import Choice
from headwise.tables import Printed

Pattern = Literal["induction", "previous_token", "duplicate_token"]


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class HeadScores(Printed):
    """The mean weight of each head on three patterns, [L, H] from 0 to 1 each: see `analyses.pattern_scores`."""

    layers: tuple[str, ...]
    induction: Tensor
    previous_token: Tensor
    duplicate_token: Tensor

    def strongest(self, pattern: Pattern = "induction", count: int = 10) -> list[tuple[float, str, int]]:
        """Return the `count` heads with the largest scores of a pattern: a list of (score, layer, head)."""
        found = strongest(getattr(self, pattern), self.layers, count)
        return [(score, layer, head) for score, layer, head, _ in found]

    def __str__(self) -> str:
        lines = []
        for pattern in ("induction", "previous_token", "duplicate_token"):
            lines.append(pattern.replace("_", " "))
            lines += [f"{score:7.3f}  {layer}, head {head}" for score, layer, head in self.strongest(pattern, 3)]
        return "\n".join(lines)


def head_scores(
    model: nn.Module,
    vocab_size: int | None = None,
    *,
    length: int = 25,
    batch: int = 8,
    bos: int | None = None,
    exclude: Sequence[int] = (),
    seed: int = 0,
    where: Choice = "*",
) -> HeadScores:
    """Score how much heads attend to the previous token, to an earlier copy of the token, and to what followed it.

    The model reads a block of random tokens twice, so that only the first copy helps: `analyses.repeated_block`.
    On ordinary text, heads that attend to anything near would score too.

    Args:
        model: a model of token ids that `headwise.watch` can record, in eval mode; its decoder is not needed.
        vocab_size: the drawn ids are smaller than this; None = the number of rows in the model's table of tokens.
        length: the length of the block; 25 in Olsson et al. 2022, who score induction as "prefix matching".
        batch, bos, exclude, seed: as for `analyses.repeated_block`; `bos` as in the model's training.
        where: the layers of self-attention.

    Raises ArgumentError where the size of the vocabulary is not known.
    """
    if vocab_size is None:
        vocab_size = vocabulary_size(model)
    if vocab_size is None:
        raise ArgumentError("head_scores: expected vocab_size=, for a model without nn.Embedding. Received: None")
    ids = repeated_block(vocab_size, length, batch, seed=seed, bos=bos, exclude=exclude)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    with torch.no_grad(), watch(model, only=where) as seen:
        run(model, ids.to(device))
    found = pattern_scores(seen, length)
    return HeadScores(name_layers(seen), found.induction, found.previous_token, found.duplicate_token)


def name_layers(seen: Seen) -> tuple[str, ...]:
    """Return the path of each record's layer; "record 0", … for records without a layer."""
    return tuple(f"record {i}" if record.site is None else record.site.name for i, record in enumerate(seen))
