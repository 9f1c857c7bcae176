"""Beam search: several hypotheses side by side, and the best of those that came to an end."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.tasks.text.steps import Decoding, Search, Steps, Written, log_probabilities, without_repeats


@torch.no_grad()
def searching(steps: Steps, limits: Tensor, decoding: Decoding) -> Search:
    """The best hypothesis of each source, by log p(Y) / lp(Y), lp(Y) = ((5 + |Y|) / 6)^α; |Y| counts the end too.

    Wu et al. 2016 (GNMT), equation 14, without coverage. At each step all hypotheses of a source are continued by all
    tokens; of the `beams` likeliest of these, those that end are finished, and the likeliest `beams` that do not end go
    on. The best finished one is kept. One that goes on is given up when even an end at the limit, with no further loss,
    could not make it better: so a search ends as soon as no better hypothesis is possible, and not before. If none came
    to an end at the limit, the best that was cut there is returned, and says so. After each step it is certain
    what all hypotheses have in common that can still become the best.

    Args:
        steps: the model, with a row a source.
        limits: [N], tokens at most, the end counted.
        decoding: its beams, its length_penalty α, and what is never chosen.
    """
    beams, count, device = decoding.beams, len(limits), limits.device
    found: list[Written | None] = [None] * count
    best = torch.full(
        (count,), -torch.inf, dtype=torch.float64, device=device
    )  # scores of the finished ones that are kept

    def penalty(length: Tensor | int) -> Tensor:
        return ((5.0 + torch.as_tensor(length, dtype=torch.float64, device=device)) / 6.0) ** decoding.length_penalty

    sources = torch.arange(count, device=device)  # those whose search goes on: n of them, with w hypotheses each
    totals_nw = torch.zeros(count, 1, dtype=torch.float64, device=device)
    written_nwt = torch.empty(count, 1, 0, dtype=torch.int64, device=device)
    ids = torch.full((count,), decoding.begin, device=device)
    length = 0
    while len(sources):
        length += 1
        n, w = totals_nw.shape
        log_p = log_probabilities(steps(ids), decoding.never)
        log_p = without_repeats(log_p, written_nwt.flatten(0, 1), decoding.no_repeat).unflatten(0, (n, w))
        # Of 2 · beams continuations at most half end, so enough go on.
        gains, tokens = log_p.topk(min(2 * beams, log_p.shape[-1]), -1)
        every = (totals_nw[..., None] + gains).flatten(1)
        top, place = every.topk(min(2 * beams, every.shape[1]), -1)
        parents, tokens = place // gains.shape[-1], tokens.flatten(1).gather(1, place)

        ends = tokens == decoding.end
        scores = (top / penalty(length)).masked_fill(~ends, -torch.inf)[:, :beams]
        score, rank = scores.max(1)
        for i in (score > best[sources]).nonzero()[:, 0].tolist():
            j = int(rank[i])
            ids_before = written_nwt[i, parents[i, j]].tolist()
            found[int(sources[i])] = Written(ids_before, float(top[i, j]), float(score[i]), True)
        best[sources] = best[sources].maximum(score)

        totals_nw, rank = top.masked_fill(ends, -torch.inf).topk(min(beams, top.shape[1]), -1)
        parents, tokens = parents.gather(1, rank), tokens.gather(1, rank)
        chain = parents[..., None].expand(-1, -1, length - 1)
        written_nwt = torch.cat([written_nwt.gather(1, chain), tokens[..., None]], -1)
        is_cut = limits[sources] == length
        for i in (is_cut & (best[sources] == -torch.inf)).nonzero()[:, 0].tolist():
            total = float(totals_nw[i, 0])
            cut_score = total / float(penalty(length))
            found[int(sources[i])] = Written(written_nwt[i, 0].tolist(), total, cut_score, False)

        can_win = totals_nw / penalty(limits[sources])[:, None] > best[sources, None]
        totals_nw = totals_nw.masked_fill(~can_win, -torch.inf)
        yield partial(_certain, sources, written_nwt, can_win & ~is_cut[:, None], found)
        stays = (can_win.any(1) & ~is_cut).nonzero()[:, 0]
        order = (torch.arange(n, device=device)[:, None] * w + parents)[stays].flatten()
        if not len(stays):
            break
        steps.reorder(order, same_sources=len(stays) == n and totals_nw.shape[1] == w)
        sources, totals_nw, written_nwt = sources[stays], totals_nw[stays], written_nwt[stays]
        ids = tokens[stays].flatten()
    done = [each for each in found if each is not None]
    if len(done) < count:
        raise ArgumentError("the model's logits are not numbers: it was not trained, or its training diverged")
    return done


def _certain(
    sources: Tensor, written_nwt: Tensor, goes_on_nw: Tensor, found: list[Written | None], source: int
) -> list[int]:
    """What the hypotheses of a source that go on, and the best one that has ended, begin with."""
    best = found[source]
    texts = [] if best is None else [best.ids]
    if (place := (sources == source).nonzero()).numel():
        row = int(place[0])
        texts += written_nwt[row][goes_on_nw[row]].tolist()
    first, last = min(texts, default=[]), max(texts, default=[])  # all others stand between these two
    differs = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
    return first[: next(differs, len(first))]
