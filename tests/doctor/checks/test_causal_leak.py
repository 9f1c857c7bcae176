"""The future of causal modules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, Causal, Cross, found, one, seeded


class Masked(Attention):
    diagonal = 0

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool, device=x.device).tril(self.diagonal))


class CausalOneAhead(Masked):
    diagonal = 1


class OneAhead(Masked):
    """Says nothing of it."""

    diagonal = 1


class CausalTurnedRound(Attention):
    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool, device=x.device).triu())


class CausalInOneHead(Causal):
    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return torch.cat([super().fill(scores, allowed)[:, :1], scores[:, 1:]], dim=1)


class Window(Attention):
    """Neighbours on both sides: not causal, and not meant to be."""

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        return self.attend(x, x, (at[:, None] - at[None]).abs() <= 1)


def test_one_token_ahead() -> None:
    for kind in (CausalOneAhead, OneAhead):
        finding = one("causal_leak", seeded(kind))
        assert (finding.name, finding.severity) == ("causal-leak", "bug")
        assert (finding.numbers["pairs"], finding.numbers["of"]) == (7, 28)  # 8 tokens
        assert finding.numbers["change"] > 0.01
        assert "exactly the next token" in finding.evidence


def test_some_heads_that_see_everything() -> None:
    finding = one("causal_leak", seeded(CausalInOneHead))
    assert (finding.severity, finding.numbers["pairs"]) == ("bug", 28)
    assert "up to 7 tokens ahead" in finding.evidence


class Blocks(Attention):
    """Causal over blocks of two, whose tokens see one another."""

    def forward(self, x: Tensor) -> Tensor:
        block = torch.arange(x.shape[1]) // 2
        return self.attend(x, x, block[:, None] >= block)


class Summaries(Attention):
    """Autoregressive attention to one summary of each pair of tokens, which are seen from their first token on."""

    def forward(self, x: Tensor) -> Tensor:
        at, begins = torch.arange(x.shape[1]), torch.arange(0, x.shape[1], 2)
        return self.attend(x, x.unflatten(1, (-1, 2)).mean(2), at[:, None] >= begins)


class ByFlag(Attention):
    diagonal = 0

    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool).tril(self.diagonal) if is_causal else None)


class ByFlagOneAhead(ByFlag):
    diagonal = 1


class IgnoresItsFlag(Attention):
    def forward(self, x: Tensor, is_causal: bool = False) -> Tensor:
        return self.attend(x, x, None)


def test_blocks_may_be_meant() -> None:
    finding = one("causal_leak", seeded(Blocks))
    assert (finding.severity, finding.numbers["pairs"]) == ("risk", 4)


def test_blocks_of_what_is_said_to_be_causal_and_says_nothing_of_them() -> None:
    finding = one("causal_leak", seeded(Summaries))
    assert (finding.severity, finding.numbers["pairs"]) == ("bug", 8)


class Switched(Attention):
    """The mask stands deeper than the switch."""

    def __init__(self, is_decoder: bool) -> None:
        super().__init__()
        self.is_decoder = is_decoder

    def forward(self, x: Tensor) -> Tensor:
        allowed = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool)
        if self.is_decoder:
            size = x.shape[1]
            allowed = torch.ones(size, size, dtype=torch.bool).tril(0)
        return self.attend(x, x, allowed)


def test_an_option_that_is_off() -> None:
    assert found("causal_leak", seeded(Switched, False)) == []
    assert found("causal_leak", seeded(Switched, True)) == []


def test_what_a_flag_promises() -> None:
    finding = one("causal_leak", seeded(ByFlagOneAhead))
    assert (finding.severity, finding.numbers["pairs"]) == ("bug", 7)
    assert "is_causal=True" in finding.evidence
    assert one("causal_leak", seeded(IgnoresItsFlag)).severity == "risk"  # some take it as a hint about the mask
    assert found("causal_leak", seeded(ByFlag)) == []


def test_a_mask_turned_round() -> None:
    finding = one("causal_leak", seeded(CausalTurnedRound))
    assert (finding.name, finding.severity) == ("mask-polarity", "bug")
    assert "28 of 28 future pairs, 0 of 28 past pairs" in finding.evidence


def test_healthy_ones() -> None:
    for kind in (Causal, Attention, Window):
        assert found("causal_leak", seeded(kind)) == []
    with pytest.raises(NotChecked, match="memory"):
        found("causal_leak", seeded(Cross))


class Fused(Causal):
    """Causal by a flag of the fused function, on one of its paths."""

    masks = False

    def forward(self, x: Tensor, output_attentions: bool = False) -> Any:
        if not output_attentions and not (self.training and self.dropout.p):
            q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
            return self.out(self.merge(functional.scaled_dot_product_attention(q, k, v, is_causal=True)))
        n = x.shape[1]
        return self.attend(x, x, torch.ones(n, n, dtype=torch.bool).tril() if self.masks else None)


class FusedAndMasked(Fused):
    masks = True


class OnRequest(Cross):
    """Causal on request; with weights the request is forgotten."""

    forgets = True

    def forward(self, query: Tensor, value: Tensor, use_causal_mask: bool = False, return_scores: bool = False) -> Any:
        n, m = query.shape[1], value.shape[1]
        causal = use_causal_mask and not (return_scores and self.forgets)
        return self.attend(query, value, torch.ones(n, m, dtype=torch.bool).tril(m - n) if causal else None)


class OnRequestAlways(OnRequest):
    forgets = False


def test_a_path_without_the_mask() -> None:
    finding = one("causal_leak", seeded(Fused))
    assert (finding.name, finding.severity) == ("causal-leak", "bug")
    assert finding.evidence.startswith("with output_attentions=True 28 of 28 future tokens reach an earlier row")
    assert one("causal_leak", seeded(Fused, dropout=0.1)).evidence.startswith("in train mode 28 of 28")
    assert found("causal_leak", seeded(FusedAndMasked, dropout=0.1)) == []


def test_a_path_without_the_mask_that_was_asked_for() -> None:
    finding = one("causal_leak", seeded(OnRequest))
    assert "with return_scores=True" in finding.evidence
    assert found("causal_leak", seeded(OnRequestAlways)) == []


class TwoBlocks(Attention):
    """The last token alone, the others together: no blocks that anybody means."""

    def forward(self, x: Tensor) -> Tensor:
        block = torch.arange(x.shape[1]) // (x.shape[1] - 1)
        return self.attend(x, x, block[:, None] >= block)


class CausalTwoBlocks(TwoBlocks):
    """Causal."""


def test_a_block_has_at_least_two_rows() -> None:
    assert one("causal_leak", seeded(CausalTwoBlocks)).severity == "bug"


class CountsFromTheEnd(Causal):
    """Sees no future. The last token has position 0."""

    backwards = True

    def forward(self, x: Tensor) -> Tensor:
        at = torch.arange(x.shape[1], dtype=x.dtype)
        return super().forward(x + (at.flip(0) if self.backwards else at)[:, None].sin())


class CountsFromTheStart(CountsFromTheEnd):
    backwards = False


class StepsStandLate(Causal):
    """Sees no future. A prompt is cached, then two single steps follow."""

    late = 1

    def forward(self, x: Tensor) -> Tensor:
        cut = max(1, x.shape[1] - 2)
        at = torch.arange(x.shape[1])[:, None]
        return super().forward(x + (at + self.late * (at >= cut)).sin())


class StepsStandRight(StepsStandLate):
    late = 0


def test_how_many_tokens_follow() -> None:
    finding = one("causal_leak", seeded(CountsFromTheEnd))
    assert (finding.name, finding.severity) == ("causal-leak", "bug")
    assert finding.numbers["row"] == 0
    assert one("causal_leak", seeded(StepsStandLate)).name == "cache-mismatch"
    assert found("causal_leak", seeded(StepsStandRight)) == []
    assert found("causal_leak", seeded(CountsFromTheStart)) == []


class Decoder(nn.Module):
    """A layer that attends to its own past, and to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Cross()

    def forward(self, target: Tensor, memory: Tensor) -> Tensor:
        n = target.shape[1]
        causal = torch.ones(n, n, dtype=torch.bool).tril()
        target = target + self.own.attend(target, target, self.both(causal, torch.ones(1, n, dtype=torch.bool)))
        return target + self.cross(target, memory)

    def both(self, causal: Tensor, real: Tensor) -> Tensor:
        return causal & real


class EitherOfTwo(Decoder):
    def both(self, causal: Tensor, real: Tensor) -> Tensor:
        return causal | real


def test_a_decoder_that_undoes_its_own_mask() -> None:
    finding = one("causal_leak", seeded(EitherOfTwo))
    assert (finding.name, finding.severity) == ("causal-leak", "bug")
    assert "28 of 28 future tokens" in finding.evidence  # 8 · 7 / 2
    assert found("causal_leak", seeded(Decoder)) == []


class CountsFromTheNewest(Causal):
    """Causal."""

    def __init__(self) -> None:
        super().__init__()
        self.ages = nn.Parameter(torch.randn(64, 16))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.ages[: x.shape[1]].flip(0))


class CountsFromTheNewestAsSaid(CountsFromTheNewest):
    """Causal. Positions are counted from the newest item back."""


def test_positions_that_are_counted_from_the_end() -> None:
    assert "how many there are does" in one("causal_leak", seeded(CountsFromTheNewest)).evidence
    assert found("causal_leak", seeded(CountsFromTheNewestAsSaid)) == []


class Convolved(Attention):
    """Queries and keys of a convolution that looks at two tokens on each side."""

    hides = True

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(16, 16, 5)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        scores = super().score(q, k)
        return scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -torch.inf)

    def forward(self, x: Tensor) -> Tensor:
        mixed = self.mix(nn.functional.pad(x.mT, self.padding())).mT
        q, k, v = self.split(self.q(mixed)), self.split(self.k(mixed)), self.split(self.v(x))
        return self.out(self.merge(self.normalise(self.score(q, k)) @ v))

    def padding(self) -> tuple[int, int]:
        return 4, 0


class ConvolvedOnBothSides(Convolved):
    def padding(self) -> tuple[int, int]:
        return 2, 2


class Model(nn.Module):
    """Nothing is said here: a part draws the causal mask."""

    def __init__(self, part: type[nn.Module]) -> None:
        super().__init__()
        self.part = part()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.part(x)


def test_a_part_that_draws_a_causal_mask_is_meant_to_be_causal() -> None:
    finding = one("causal_leak", seeded(Model, ConvolvedOnBothSides))
    assert (finding.name, finding.severity) == ("causal-leak", "bug")
    assert found("causal_leak", seeded(Model, Convolved)) == []


class Best(Attention):
    """The queries of the largest norm attend, causally; the others get the mean of the tokens so far."""

    running = True

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        attended = self.attend(x, x, torch.ones(n, n, dtype=torch.bool).tril())
        so_far = x.cumsum(1) / torch.arange(1, n + 1)[:, None] if self.running else x.mean(1, keepdim=True).expand_as(x)
        best = x.norm(dim=-1).topk(min(n, 10)).indices
        chosen = torch.zeros(x.shape[:2], dtype=torch.bool).scatter(1, best, True)
        return attended.where(chosen[..., None], so_far)


class CausalBest(Best):
    """Which queries are the best depends on all tokens; what they give does not."""


class CausalBestOfTheMean(Best):
    running = False


def test_what_only_many_tokens_show() -> None:
    finding = one("causal_leak", seeded(CausalBestOfTheMean))
    assert finding.severity == "bug"
    assert finding.numbers["of"] == 48 * 47 / 2
