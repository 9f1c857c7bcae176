"""Searches choose the next tokens of texts: greedily, by sampling, or by beams. A text joins and leaves at any step.

A search knows no model: its method `choose` gets the logits of the next tokens. A hypothesis is one beam. Dimension
letters: N texts, w hypotheses of each, V vocabulary, t the longest written text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from headwise.errors import ArgumentError
from headwise.tasks.text.likeliest import likeliest
from headwise.tasks.text.steps import Decoding, Written, log_probabilities, without_repeats


@dataclass(frozen=True)
class Asked:
    """A request to generate a text.

    Args:
        source: the tokens that the model reads first, at least one.
        limit: the largest number of generated tokens, including the end token; at least 1.
        draws: [limit] in [0, 1), random numbers for sampling; None = do not sample.
    """

    source: Sequence[int]
    limit: int
    draws: Tensor | None = None


class Chosen(NamedTuple):
    """The result of one step: chosen tokens `ids` [N, w]; the hypothesis that each continues; the texts that ended.

    `parents` is None if each hypothesis continues itself.
    """

    ids: Tensor
    parents: Tensor | None
    ended: dict[int, Written | ArgumentError]


def search_for(decoding: Decoding, device: torch.device) -> Choosing | Searching:
    """Make an empty search of the kind that the options ask for: beam search, or one hypothesis per text."""
    return (Searching if decoding.beams > 1 else Choosing)(decoding, device)


class _Search:
    """The state of each text in a search, in tensors whose first dimension is the text.

    `held` lists the names of the attributes that are such tensors.
    """

    held: tuple[str, ...]
    width: int

    def __init__(self, decoding: Decoding, device: torch.device) -> None:
        self.decoding = decoding
        self.lengths = torch.zeros(0, dtype=torch.int64, device=device)
        self.limits = torch.zeros(0, dtype=torch.int64, device=device)

    def __len__(self) -> int:
        """Return N, the number of texts."""
        return len(self.lengths)

    def join(self, asked: Sequence[Asked]) -> None:
        self.lengths = torch.cat([self.lengths, self.lengths.new_zeros(len(asked))])
        self.limits = torch.cat([self.limits, self.limits.new_tensor([each.limit for each in asked])])

    def keep(self, order: Sequence[int]) -> None:
        """Move the old text order[i] to index i. Texts that are not in `order` leave."""
        places = self.lengths.new_tensor(list(order))
        for name in ("lengths", "limits", *self.held):
            setattr(self, name, getattr(self, name)[places])


class Choosing(_Search):
    """The search with one hypothesis per text: each token is the most probable one, or is sampled."""

    held = ("totals", "written", "draws")
    width = 1

    def __init__(self, decoding: Decoding, device: torch.device) -> None:
        super().__init__(decoding, device)
        self.totals = torch.zeros(0, dtype=torch.float64, device=device)
        self.written = torch.zeros(0, 0, dtype=torch.int64, device=device)  # [N, room]
        self.draws = torch.zeros(0, 0, dtype=torch.float64, device=device)  # [N, room]

    def join(self, asked: Sequence[Asked]) -> None:
        super().join(asked)
        count, room = len(asked), max(each.limit for each in asked)
        self.totals = torch.cat([self.totals, self.totals.new_zeros(count)])
        self.written = _stacked(self.written, self.written.new_zeros(count, room))
        if self.decoding.sample:
            more = self.draws.new_zeros(count, room)
            for row, each in zip(more, asked, strict=True):
                assert each.draws is not None
                row[: each.limit] = each.draws
            self.draws = _stacked(self.draws, more)
        else:
            self.draws = self.draws.new_zeros(len(self.lengths), 0)

    def choose(self, logits_N1V: Tensor) -> Chosen:
        texts = torch.arange(len(self.lengths), device=self.lengths.device)
        log_p = log_probabilities(logits_N1V[:, 0], self.decoding.never)
        log_p = without_repeats(log_p, self.written, self.decoding.no_repeat, self.lengths)
        how = self.decoding
        ids = drawn(log_p, self.draws[texts, self.lengths], how) if how.sample else log_p.argmax(-1)
        self.totals = self.totals + log_p.gather(1, ids[:, None])[:, 0].double()
        self.written[texts, self.lengths] = ids
        self.lengths = self.lengths + 1
        ends = ids == self.decoding.end
        ended: dict[int, Written | ArgumentError] = {}
        for i in (ends | (self.lengths >= self.limits)).nonzero()[:, 0].tolist():
            is_finished, total = bool(ends[i]), float(self.totals[i])
            count = int(self.lengths[i]) - is_finished
            ended[i] = Written(self.written[i, :count].tolist(), total, total, is_finished)
        return Chosen(ids[:, None], None, ended)

    def certain(self, text: int) -> list[int]:
        """Return the tokens of this text that are final: every token, as soon as it is chosen."""
        ids: list[int] = self.written[text, : int(self.lengths[text])].tolist()
        return ids[:-1] if ids[-1:] == [self.decoding.end] else ids


class Searching(_Search):
    """Beam search with several hypotheses per text. The finished hypothesis with the highest log p(Y) / lp(Y) wins.

    lp(Y) = ((5 + |Y|) / 6)^α; |Y| includes the end.

    Wu et al. 2016 (GNMT), equation 14, without coverage. At each step all hypotheses of a text are continued by all
    tokens; of the `beams` likeliest of these, those that end are finished, and the likeliest `beams` that do not end go
    on. The best finished hypothesis is kept. A hypothesis that goes on is dropped when even an end at the limit,
    without further loss, could not make it better than the kept one: so a search ends exactly when no better hypothesis
    is possible. If none has ended by the limit, the best hypothesis that was cut there is returned, marked as
    unfinished.

    A text has w hypotheses from its first step on: at first all except one are impossible.
    """

    held = ("totals", "written", "best", "at_limit")

    def __init__(self, decoding: Decoding, device: torch.device) -> None:
        super().__init__(decoding, device)
        self.width = decoding.beams
        self.totals = torch.zeros(0, self.width, dtype=torch.float64, device=device)
        self.written = torch.zeros(0, self.width, 0, dtype=torch.int64, device=device)
        self.best = torch.zeros(0, dtype=torch.float64, device=device)
        self.at_limit = torch.zeros(0, dtype=torch.float64, device=device)  # the penalty at the limit
        self._found: list[Written | None] = []

    def join(self, asked: Sequence[Asked]) -> None:
        super().join(asked)
        count = len(asked)
        totals = self.totals.new_full((count, self.width), -torch.inf)
        totals[:, 0] = 0
        self.totals = torch.cat([self.totals, totals])
        room = max(each.limit for each in asked)
        self.written = _stacked(self.written, self.written.new_zeros(count, self.width, room))
        self.best = torch.cat([self.best, self.best.new_full((count,), -torch.inf)])
        self.at_limit = torch.cat([self.at_limit, self._penalty(self.limits[-count:])])
        self._found += [None] * count

    def keep(self, order: Sequence[int]) -> None:
        super().keep(order)
        self._found = [self._found[i] for i in order]

    def choose(self, logits_NwV: Tensor) -> Chosen:
        beams, texts = self.width, len(self.lengths)
        gains_NwC, tokens = self._continuations(logits_NwV)
        every = (self.totals[..., None] + gains_NwC).flatten(1)
        top, place = every.topk(min(2 * beams, every.shape[1]), -1)
        parents, tokens = place // gains_NwC.shape[-1], tokens.flatten(1).gather(1, place)

        before, self.lengths = self.lengths, self.lengths + 1
        penalty = self._penalty(self.lengths)
        ends = tokens == self.decoding.end
        score, rank = (top / penalty[:, None]).masked_fill(~ends, -torch.inf)[:, :beams].max(1)
        for i in (score > self.best).nonzero()[:, 0].tolist():
            j = int(rank[i])
            ids = self.written[i, parents[i, j], : int(before[i])].tolist()
            self._found[i] = Written(ids, float(top[i, j]), float(score[i]), True)
        self.best = self.best.maximum(score)

        totals, rank = top.masked_fill(ends, -torch.inf).topk(beams, -1)
        parents, tokens = parents.gather(1, rank), tokens.gather(1, rank)
        longest = int(self.lengths.max())
        rows = torch.arange(texts, device=before.device)
        self.written[..., :longest] = self.written[..., :longest].gather(1, parents[..., None].expand(-1, -1, longest))
        self.written[rows, :, before] = tokens
        is_cut = self.lengths == self.limits
        for i in (is_cut & (self.best == -torch.inf)).nonzero()[:, 0].tolist():
            total = float(totals[i, 0])
            ids = self.written[i, 0, : int(self.lengths[i])].tolist()
            self._found[i] = Written(ids, total, total / float(penalty[i]), False)
        can_win = totals / self.at_limit[:, None] > self.best[:, None]
        self.totals = totals.masked_fill(~can_win, -torch.inf)
        ended: dict[int, Written | ArgumentError] = {}
        for i in (~can_win.any(1) | is_cut).nonzero()[:, 0].tolist():
            ended[i] = self._found[i] or ArgumentError(
                "the model's logits are not numbers: it was not trained, or its training diverged"
            )
        return Chosen(tokens, parents, ended)

    def certain(self, text: int) -> list[int]:
        """Return the tokens of this text that are final: the common prefix of all hypotheses that can still win."""
        best = self._found[text]
        texts = [] if best is None else [best.ids]
        length = int(self.lengths[text])
        if length < int(self.limits[text]):
            texts += self.written[text, self.totals[text] > -torch.inf, :length].tolist()
        first, last = min(texts, default=[]), max(texts, default=[])  # all others are between these two in order
        differs = (i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b)
        return first[: next(differs, len(first))]

    def _continuations(self, logits_NwV: Tensor) -> tuple[Tensor, Tensor]:
        """Return log p of the likeliest tokens of each hypothesis, and these tokens, [N, w, C] each.

        C is 2 · w, or V if that is smaller: of the 2 · w best continuations at most half end, so at least w of them go
        on.
        """
        log_p_RV = log_probabilities(logits_NwV.flatten(0, 1), self.decoding.never)
        lengths_R = self.lengths.repeat_interleave(self.width)
        log_p_RV = without_repeats(log_p_RV, self.written.flatten(0, 1), self.decoding.no_repeat, lengths_R)
        values_RC, tokens_RC = likeliest(log_p_RV, min(2 * self.width, log_p_RV.shape[1]))
        shape = (-1, self.width)
        return values_RC.unflatten(0, shape), tokens_RC.unflatten(0, shape)

    def _penalty(self, lengths: Tensor) -> Tensor:
        return ((5.0 + lengths.double()) / 6.0) ** self.decoding.length_penalty


def _stacked(above: Tensor, below: Tensor) -> Tensor:
    """Stack two tensors; the narrower one is padded with 0 at the end of its last dimension."""
    width = max(above.shape[-1], below.shape[-1])
    return torch.cat([torch.nn.functional.pad(x, (0, width - x.shape[-1])) for x in (above, below)])


def drawn(log_p_RV: Tensor, draws_R: Tensor, decoding: Decoding) -> Tensor:
    """Draw a token [R] for each row from softmax(log p / temperature), by the row's random number in [0, 1).

    - Only the `top_k` likeliest tokens can be drawn, if it is not 0 (Fan et al. 2018).
    - Of these, only the fewest that sum to `top_p` (the nucleus; Holtzman et al. 2020, equation 2).
    - The probabilities are laid side by side, the likeliest first; the drawn token is the one where the number falls.
    """
    p, tokens = (log_p_RV.double() / decoding.temperature).softmax(-1).sort(dim=-1, descending=True, stable=True)
    if decoding.top_k:
        p[:, decoding.top_k :] = 0
    p = p / p.sum(-1, keepdim=True)
    before = p.cumsum(-1) - p
    p = torch.where(before < decoding.top_p, p, 0)
    up_to = p.cumsum(-1)
    place = (up_to <= draws_R[:, None] * up_to[:, -1:]).sum(-1, keepdim=True)
    last = (p > 0).sum(-1, keepdim=True) - 1  # rounding must not lead past the last allowed token
    return tokens.gather(1, place.minimum(last))[:, 0]
