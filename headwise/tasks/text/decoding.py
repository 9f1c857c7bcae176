"""Generation of text, one token after another: greedily, by beam search, or by sampling.

`write` writes texts for many sources by an encoder-decoder, `follow` yields a single text while it is written.
Both functions run the modules of the model, so that `headwise.watch` and `headwise.edit` see the model that writes.
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

ROWS = 320  # of a batch: number of sentences × beams
MEMORY_TOKENS = 16384  # of a batch: rows × source tokens


class CachedSteps:
    """The `Steps` of an encoder-decoder with a cache: a source is read once, and each step reads one token per row."""

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
    """Generate a text for each source. Sources of similar length share a batch; finished texts leave it.

    Args:
        model: in eval mode; otherwise dropout is active.
        sources: the ids of each source.
        limits: the largest number of tokens for each text, including the end.
        decoding: how tokens are chosen. The random numbers of a source depend only on the seed and on its index in
            `sources`, not on its batch.
        steps: a function that makes the `Steps` of the model.

    Raises:
        ArgumentError: an empty source, a limit below 1.
    """
    asked = _asked(sources, limits, decoding)
    found: dict[int, Written] = {}
    # A source has one row per beam.
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
    """Yield after each step the part of the generated text that cannot change any more; at last the whole text.

    In a beam search this part is the common prefix of all hypotheses that can still win. Arguments and errors as for
    `write`.
    """
    return followed(_writing(model, _asked([source], [limit], decoding), decoding, steps))


@torch.no_grad()
def _writing(model: EncoderDecoder, asked: Sequence[Asked], decoding: Decoding, steps: MakeSteps) -> Writing:
    """Make a `Writing` (texts that are being generated) in which these texts begin."""
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
    draws = draw_numbers(decoding, limits)
    return [
        Asked(source, limit, None if draws is None else draws[i, :limit])
        for i, (source, limit) in enumerate(zip(sources, limits, strict=True))
    ]


def draw_numbers(decoding: Decoding, limits: Sequence[int]) -> Tensor | None:
    """Draw random numbers [sources, steps] in [0, 1) for sampling; None if the decoding does not sample."""
    if not decoding.sample:
        return None
    seeded = torch.Generator().manual_seed(decoding.seed)
    return torch.rand(max(limits, default=1), len(limits), generator=seeded, dtype=torch.float64).T
