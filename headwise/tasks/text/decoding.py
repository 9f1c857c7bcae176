"""How a model writes a text, one token after another: greedily, by beam search, or by chance.

`write` is for an encoder-decoder and many sources, `follow` for one that is watched as it is written. `choosing` here
and `searching` beside it know no model: they ask `Steps` (`steps.py`) for the logits of the next token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.models.encoder_decoder import EncoderDecoder
from headwise.nn import Cache
from headwise.tasks.text.beam_search import searching
from headwise.tasks.text.padding import padded_with_real
from headwise.tasks.text.steps import (
    Decoding,
    Search,
    Steps,
    Written,
    finished,
    followed,
    log_probabilities,
    without_repeats,
)

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
    device = _checked(model, sources, limits)
    draws = draws_of(decoding, limits)
    written: dict[int, Written] = {}
    for places in _batches([len(source) for source in sources], decoding.beams):
        read = padded_with_real([sources[i] for i in places], 0)
        batch_limits = torch.tensor([limits[i] for i in places], device=device)
        run = steps(model, *(each.to(device) for each in read))
        drawn = None if draws is None else draws[places].to(device)
        found = finished(_search(run, batch_limits, decoding, drawn))
        written.update(zip(places, found, strict=True))
    return [written[i] for i in range(len(sources))]


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
    device = _checked(model, [source], [limit])
    draws = draws_of(decoding, [limit])
    with torch.no_grad():
        run = steps(model, *(each.to(device) for each in padded_with_real([source], 0)))
    drawn = None if draws is None else draws.to(device)
    return followed(_search(run, torch.tensor([limit], device=device), decoding, drawn))


def _search(run: Steps, limits: Tensor, decoding: Decoding, draws: Tensor | None) -> Search:
    return searching(run, limits, decoding) if decoding.beams > 1 else choosing(run, limits, decoding, draws)


def _checked(model: EncoderDecoder, sources: Sequence[Sequence[int]], limits: Sequence[int]) -> torch.device:
    """The device of the model, for which there is something to do."""
    if any(limit < 1 for limit in limits):
        raise ArgumentError(f"limits: expected at least 1 token each. Received: {min(limits)}")
    if any(not len(source) for source in sources):
        raise ArgumentError("sources: expected at least one token each. Received: an empty one")
    return next(model.parameters()).device


def draws_of(decoding: Decoding, limits: Sequence[int]) -> Tensor | None:
    """[sources, steps], each in [0, 1)."""
    if not decoding.sample:
        return None
    seeded = torch.Generator().manual_seed(decoding.seed)
    return torch.rand(max(limits, default=1), len(limits), generator=seeded, dtype=torch.float64).T


Choose = Callable[[Tensor, Tensor, int], Tensor]  # log-probabilities [rows, V], whose they are [rows], step -> [rows]


def likeliest(log_p_RV: Tensor, rows: Tensor, step: int) -> Tensor:
    """The likeliest token of each row: greedy decoding."""
    return log_p_RV.argmax(-1)


def sampled(draws: Tensor, decoding: Decoding) -> Choose:
    """Tokens drawn by their probability; see `drawn`.

    Args:
        draws: [sources, steps] in [0, 1).
        decoding: temperature, top_k, top_p.
    """
    return lambda log_p_RV, rows, step: drawn(log_p_RV, draws[rows, step], decoding)


def drawn(log_p_RV: Tensor, draws_R: Tensor, decoding: Decoding) -> Tensor:
    """The token of each row that a number in [0, 1) draws: softmax(log p / temperature), of which

    - only the `top_k` likeliest stay, if it is not 0 (Fan et al. 2018);
    - of these only the fewest that have `top_p` together (the nucleus; Holtzman et al. 2020, equation 2);
    - the token is where the draw falls when those lie side by side, the likeliest first.
    """
    p, tokens = (log_p_RV.double() / decoding.temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    if decoding.top_k:
        p[:, decoding.top_k :] = 0
    p = p / p.sum(-1, keepdim=True)
    before = p.cumsum(-1) - p
    p = torch.where(before < decoding.top_p, p, 0)
    up_to = p.cumsum(-1)
    place = (up_to <= draws_R[:, None] * up_to[:, -1:]).sum(-1, keepdim=True)
    last = (p > 0).sum(-1, keepdim=True) - 1  # rounding must not lead past the last that may be drawn
    return tokens.gather(1, place.minimum(last))[:, 0]


@torch.no_grad()
def choosing(steps: Steps, limits: Tensor, decoding: Decoding, draws: Tensor | None = None) -> Search:
    """One hypothesis a source, up to the end or the limit: each token is chosen by itself, and is certain then.

    Args:
        steps: the model, with a row a source.
        limits: [N], tokens at most.
        decoding: how tokens are chosen; its beams are not used.
        draws: of `sampled`; None = always the likeliest token.
    """
    choose = likeliest if draws is None else sampled(draws, decoding)
    count, device = len(limits), limits.device
    written: list[list[int]] = [[] for _ in range(count)]
    so_far_Rt = torch.empty(count, 0, dtype=torch.int64, device=device)  # the same, of the rows that go on
    totals = torch.zeros(count, dtype=torch.float64, device=device)
    is_finished = [False] * count
    rows = torch.arange(count, device=device)  # whose the rows of `steps` are
    ids = torch.full((count,), decoding.begin, device=device)
    for step in range(int(limits.max()) if count else 0):
        log_p = without_repeats(log_probabilities(steps(ids), decoding.never), so_far_Rt, decoding.no_repeat)
        ids = choose(log_p, rows, step)
        totals[rows] += log_p.gather(1, ids[:, None])[:, 0].double()
        ends = ids == decoding.end
        for row, token in zip(rows.tolist(), ids.tolist(), strict=True):
            if token == decoding.end:
                is_finished[row] = True
            else:
                written[row].append(token)
        yield written.__getitem__
        stays = (~ends & (limits[rows] > step + 1)).nonzero()[:, 0]
        if not len(stays):
            break
        so_far_Rt = torch.cat([so_far_Rt, ids[:, None]], 1)
        if len(stays) < len(rows):
            steps.reorder(stays)
            rows, ids, so_far_Rt = rows[stays], ids[stays], so_far_Rt[stays]
    found = zip(written, totals.tolist(), is_finished, strict=True)
    return [Written(ids_, total, total, finished) for ids_, total, finished in found]


def _batches(lengths: Sequence[int], beams: int) -> list[list[int]]:
    """The places of sources that are decoded together, the shortest first."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        rows = (len(batches[-1]) + 1) * beams if batches else 0
        if not batches or rows > ROWS or rows * lengths[i] > MEMORY_TOKENS:
            batches.append([])
        batches[-1].append(i)
    return batches
