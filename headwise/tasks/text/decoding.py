"""How a model writes a text, one token after another: greedily, by beam search, or by chance.

`write` is for an encoder-decoder and many sources, `follow` for one that is watched as it is written. Both run the
modules of the model, so that what is watched or edited is what writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.nn import Cache
from headwise.tasks.batching import sorted_batches
from headwise.tasks.text.padding import padded_with_real
from headwise.tasks.text.searches import Asked, search_for
from headwise.tasks.text.steps import Decoding, Steps, Written
from headwise.tasks.text.writing import Stepped, Writing, followed, written

ROWS = 320  # of a batch: sentences × beams
MEMORY_TOKENS = 16384  # of a batch: rows × source tokens


class CachedSteps:
    """An encoder-decoder on its cache: each source is read and projected once, and each step costs one token a row."""

    def __init__(self, model: EncoderDecoder, source_ids: Tensor, source_real: Tensor) -> None:
        self._model = model
        self._source_ids = source_ids
        self._memory = model.encode(source_ids, source_real)
        self._real: Tensor | None = None if bool(source_real.all()) else source_real
        self._cache = Cache()

    def __call__(self, ids: Tensor) -> Tensor:
        hidden = self._model.decode(ids[:, None], self._memory, self._real, self._cache)
        return self._model.logits(hidden, self._memory, self._source_ids, self._real)[:, 0]

    def reorder(self, order: Tensor, *, same_sources: bool = False) -> None:
        self._cache.reorder(order, memories=not same_sources)
        if not same_sources:
            self._source_ids, self._memory = self._source_ids[order], self._memory[order]
            self._real = None if self._real is None else self._real[order]


MakeSteps = Callable[[EncoderDecoder, Tensor, Tensor], Steps]


@torch.no_grad()
def write(
    model: EncoderDecoder,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    decoding: Decoding,
    *,
    steps: MakeSteps = CachedSteps,
) -> list[Written]:
    """What the model writes for each source. Those of about one length share a batch, which finished ones leave.

    Args:
        model: in eval mode, or its dropout takes part.
        sources: the ids of each.
        limits: how many tokens at most for each, the end counted.
        decoding: how tokens are chosen. What is drawn for a source depends on the seed and on its place alone, not on
            the batch that it is in.
        steps: how the model is run.

    Raises:
        ArgumentError: an empty source, a limit below 1.
    """
    asked = _asked(sources, limits, decoding)
    found: dict[int, Written] = {}
    # A source has as many rows as beams.
    tokens, size = MEMORY_TOKENS // decoding.beams, max(1, ROWS // decoding.beams)
    for places in sorted_batches([len(source) for source in sources], tokens=tokens, size=size):
        some = [asked[i] for i in places]
        found.update(zip(places, written(_writing(model, some, decoding, steps)), strict=True))
    return [found[i] for i in range(len(sources))]


def follow(
    model: EncoderDecoder,
    source: Sequence[int],
    limit: int,
    decoding: Decoding,
    *,
    steps: MakeSteps = CachedSteps,
) -> Iterator[list[int]]:
    """What `write` writes for this source alone, as far as it is certain, after each step; the last time whole.

    Of a beam search it is certain what all hypotheses that can still win have in common.
    Arguments and errors as for `write`.
    """
    return followed(_writing(model, _asked([source], [limit], decoding), decoding, steps))


@torch.no_grad()
def _writing(model: EncoderDecoder, asked: Sequence[Asked], decoding: Decoding, steps: MakeSteps) -> Writing:
    """The beginning of these texts."""
    device = next(model.parameters()).device

    def begin(sources: Sequence[Sequence[int]]) -> Steps:
        return steps(model, *(each.to(device) for each in padded_with_real(sources, 0)))

    writing = Writing(Stepped(begin, decoding, device), search_for(decoding, device))
    writing.join(asked)
    return writing


def _asked(sources: Sequence[Sequence[int]], limits: Sequence[int], decoding: Decoding) -> list[Asked]:
    if any(limit < 1 for limit in limits):
        raise ArgumentError(f"limits: expected at least 1 token each. Received: {min(limits)}")
    if any(not len(source) for source in sources):
        raise ArgumentError("sources: expected at least one token each. Received: an empty one")
    draws = draws_of(decoding, limits)
    return [
        Asked(source, limit, None if draws is None else draws[i, :limit])
        for i, (source, limit) in enumerate(zip(sources, limits, strict=True))
    ]


def draws_of(decoding: Decoding, limits: Sequence[int]) -> Tensor | None:
    """[sources, steps], each in [0, 1)."""
    if not decoding.sample:
        return None
    seeded = torch.Generator().manual_seed(decoding.seed)
    return torch.rand(max(limits, default=1), len(limits), generator=seeded, dtype=torch.float64).T
