"""Parameters that no gradient reaches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor import diagnose
from headwise.doctor.patient import NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class ForgetsTheOutput(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        return self.merge(self.normalise(self.fill(self.score(q, k), allowed)) @ v)


class ThrowsAway(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        self.gate(x)
        return super().forward(x)


class TwoStreams(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.norm_x, self.norm_memory = nn.LayerNorm(16), nn.LayerNorm(16)

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.norm_x(x), self.norm_memory(memory), None)


class OneNormForBoth(TwoStreams):
    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.norm_x(x), self.norm_x(memory), None)


class OneNormIsLeft(TwoStreams):
    """The memory is used as it is: a norm that is left over, and none in its place."""

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        return self.attend(self.norm_x(x), memory, None)


class Optional(Attention):
    def __init__(self, gated: bool = False) -> None:
        super().__init__()
        self.gated = gated
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gate(x) if self.gated else super().forward(x)


class ByFlag(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(16, 16)

    def forward(self, x: Tensor, use_gate: bool = False) -> Tensor:
        return super().forward(x) * self.gate(x) if use_gate else super().forward(x)


class DetachesWeights(Attention):
    def normalise(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1).detach()


class NoGradient(Attention):
    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


class ScaleOfNoUse(Attention):
    """A gain for every feature that is not applied."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(16))


class DetachesInTraining(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)), self.split(self.v(memory))
        if self.training:
            k = k.detach()
        return self.out(self.merge(self.normalise(self.fill(self.score(q, k), allowed)) @ v))


class DetachesKeys(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(memory)).detach(), self.split(self.v(memory))
        return self.out(self.merge(self.normalise(self.fill(self.score(q, k), allowed)) @ v))


def test_a_gain_that_is_not_applied() -> None:
    finding = one("unused_parameter", seeded(ScaleOfNoUse))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")


def test_keys_that_are_detached() -> None:
    for module, said in ((DetachesKeys, "k.weight"), (DetachesInTraining, "in train mode")):
        finding = one("unused_parameter", seeded(module))
        assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
        assert said in finding.evidence


def test_a_projection_that_is_forgotten() -> None:
    finding = one("unused_parameter", seeded(ForgetsTheOutput))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert finding.numbers["weights"] == 16 * 16 + 16
    assert "out.weight [16, 16] and out.bias [16] never get a gradient: forward does not use them" in finding.evidence
    assert finding.where.file.endswith("specimens.py")
    assert "self.out" in finding.where.code


def test_a_result_that_is_thrown_away() -> None:
    finding = one("unused_parameter", seeded(ThrowsAway))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "gate is computed, but its result is not used" in finding.evidence


def test_what_an_option_uses_is_a_risk() -> None:
    finding = one("unused_parameter", seeded(Optional))
    assert (finding.name, finding.severity) == ("unused-parameter", "risk")
    assert found("unused_parameter", seeded(Optional, gated=True)) == []
    assert found("unused_parameter", seeded(ByFlag)) == []  # the flag is turned to see


def test_gradients_that_are_cut_off() -> None:
    finding = one("unused_parameter", seeded(DetachesWeights))
    assert (finding.name, finding.severity) == ("gradient-blocked", "bug")
    assert finding.numbers["blocked"] == 3  # of q both, of k the weight: its bias changes nothing anyway
    assert finding.numbers["change"] > 0.01
    blind = one("unused_parameter", seeded(NoGradient))
    assert (blind.name, blind.numbers["blocked"]) == ("gradient-blocked", 8)


class Gated(Attention):
    """Begins as the identity: behind a gate of 0 no gradient reaches anything at first."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.gate * super().forward(x)


def test_a_gate_that_begins_at_zero_hides_nothing() -> None:
    assert found("unused_parameter", seeded(Gated)) == []


class Indexer(nn.Module):
    """The two best keys of every query."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(16, 4), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return (self.q(x) @ self.k(x).mT).topk(2, -1).indices


class OfTheBestKeys(Attention):
    def __init__(self) -> None:
        super().__init__()
        self.indexer = Indexer()

    def forward(self, x: Tensor) -> Tensor:
        best = torch.zeros(x.shape[0], x.shape[1], x.shape[1], dtype=torch.bool)
        return self.attend(x, x, best.scatter(-1, self.indexer(x), True)[:, None])


def test_an_indexer_has_no_gradient_by_design() -> None:
    assert found("unused_parameter", seeded(OfTheBestKeys)) == []


def test_healthy_ones() -> None:
    assert found("unused_parameter", seeded(Attention)) == []
    frozen = seeded(ForgetsTheOutput)
    frozen.get_submodule("out").requires_grad_(False)
    assert found("unused_parameter", frozen) == []
    with pytest.raises(NotChecked, match="no parameters"):
        found("unused_parameter", seeded(Attention).requires_grad_(False))


class AlongTheColumns(Attention):
    """Takes an image [B, M, H, W] and attends along its columns, of which a row has one token."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Conv2d(16, 16, 1) for _ in range(4))

    def forward(self, image: Tensor) -> Tensor:
        q, k, v = (w(image).permute(0, 3, 2, 1) for w in (self.q, self.k, self.v))
        y = self.score(q, k).softmax(-1) @ v
        return self.out(y.permute(0, 3, 2, 1))


class QueriesForgotten(AlongTheColumns):
    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(k, k)


def test_columns_of_one_token() -> None:
    assert found("unused_parameter", seeded(AlongTheColumns)) == []
    assert {x.name for x in found("unused_parameter", seeded(QueriesForgotten))} == {"unused-parameter"}


class TwoAttentions(nn.Module):
    """A decoder layer: x attends to itself, then to a memory."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.cross = Attention(), Attention()

    def forward(self, x: Tensor, memory: Tensor) -> Tensor:
        x = x + self.own.attend(x, x, None)
        return x + self.second().attend(x, memory, None)

    def second(self) -> Attention:
        return self.cross


class TakesTheFirstTwice(TwoAttentions):
    def second(self) -> Attention:
        return self.own


def test_a_part_that_its_holder_does_not_use_is_one_finding() -> None:
    finding = one("unused_parameter", seeded(TakesTheFirstTwice))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "of cross never get a gradient: forward does not use cross" in finding.evidence
    assert found("unused_parameter", seeded(TwoAttentions)) == []


def test_a_part_that_is_called_in_the_place_of_another() -> None:
    finding = one("unused_parameter", seeded(OneNormForBoth))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert "norm_x is called twice: it stands where norm_memory should" in finding.evidence
    assert one("unused_parameter", seeded(OneNormIsLeft)).severity == "risk"
    assert found("unused_parameter", seeded(TwoStreams)) == []


class Global(Attention):
    """attention_mask: [B, N]: 0 = padding, 1 = a token, 2 = a token whose queries have a projection of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.q_global = nn.Linear(16, 16)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            attention_mask = torch.ones(x.shape[:2], dtype=torch.int64)
        is_global = attention_mask == 2
        q = torch.where(is_global[..., None], self.q_global(x), self.q(x))
        k, v = self.split(self.k(x)), self.split(self.v(x))
        scores = self.score(self.split(q), k).masked_fill((attention_mask == 0)[:, None, None], -1e4)
        return self.out(self.merge(scores.softmax(-1) @ v))


def test_what_a_code_of_the_mask_turns_on_is_used() -> None:
    assert found("unused_parameter", seeded(Global)) == []


class OfADictionary(Attention):
    """Weights and biases in a dictionary, as functional code has them."""

    of_values = "v"

    def __init__(self) -> None:
        super().__init__()
        self.biases = nn.ParameterDict({name: nn.Parameter(torch.randn(16)) for name in "qv"})

    def forward(self, x: Tensor) -> Tensor:
        q, v = self.q(x) + self.biases["q"], self.v(x) + self.biases[self.of_values]
        scores = self.score(self.split(q), self.split(self.k(x)))
        return self.out(self.merge(scores.softmax(-1) @ self.split(v)))


class OfTheQueries(OfADictionary):
    of_values = "q"


def test_a_bias_that_is_taken_for_another() -> None:
    finding = one("unused_parameter", seeded(OfTheQueries))
    assert (finding.name, finding.severity) == ("unused-parameter", "bug")
    assert found("unused_parameter", seeded(OfADictionary)) == []


class Titles(nn.Module):
    """media: [B, titles, words, 16]; words become titles, and titles attend to one another."""

    def __init__(self) -> None:
        super().__init__()
        self.score, self.attention = nn.Linear(16, 1), Attention()

    def forward(self, x: Tensor, media: Tensor) -> Tensor:
        titles = (self.score(media).softmax(2) * media).sum(2)
        user = self.attention.attend(titles, titles, None).mean(1)
        return x * user[:, None]


def test_a_single_row_of_tokens_shows_nothing_of_a_softmax_over_rows() -> None:
    assert found("unused_parameter", seeded(Titles)) == []


class Longformer(Attention):
    """
    attention_mask: [B, N]
        <0: padding
         0: local attention
        >0: global attention, with projections of its own
    """

    def __init__(self) -> None:
        super().__init__()
        self.global_q = nn.Linear(16, 16)

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is None:
            attention_mask = torch.zeros(x.shape[:2])
        hidden, is_global = attention_mask < 0, attention_mask > 0
        q = torch.where(is_global[..., None], self.global_q(x), self.q(x)) if is_global.any() else self.q(x)
        scores = self.fill(self.score(self.split(q), self.split(self.k(x))), ~hidden[:, None, None])
        return self.out(self.merge(scores.softmax(-1) @ self.split(self.v(x))))


def test_a_mask_of_three_kinds_of_tokens() -> None:
    assert found("unused_parameter", seeded(Longformer)) == []
    assert not [x for x in diagnose(seeded(Longformer)).findings if x.severity == "bug"]


class Shifted(Attention):
    """Strictly causal: the first query is learned, and sees a learned key alone."""

    sees = 0

    def __init__(self) -> None:
        super().__init__()
        self.start, self.nothing = nn.Parameter(torch.randn(1, 1, 16)), nn.Parameter(torch.randn(1, 1, 16))

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        queries = torch.cat([self.start.expand(b, -1, -1), x[:, :-1]], dim=1)
        allowed = torch.cat([torch.ones(n, 1), torch.ones(n, n).tril(-1)], dim=1).bool()
        return self.attend(queries, torch.cat([self.nothing.expand(b, -1, -1), x], dim=1), allowed)


class StartIsCut(Shifted):
    """Its rows are all of tokens."""

    def forward(self, x: Tensor) -> Tensor:
        b = x.shape[0]
        queries = torch.cat([self.start.expand(b, -1, -1), x], dim=1)[:, 1:]
        return self.attend(queries, torch.cat([self.nothing.expand(b, -1, -1), x], dim=1), None)


def test_the_query_of_a_row_that_sees_one_key() -> None:
    assert found("unused_parameter", seeded(Shifted)) == []
    assert "start" in one("unused_parameter", seeded(StartIsCut)).evidence


class OneOfFew(Attention):
    """The weights of the best log(N) shifts: of five tokens, of one, which is 1 whatever the queries."""

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        scores = torch.stack([(self.q(x) * self.k(x).roll(i, 1)).mean((1, 2)) for i in range(n)], -1)
        best, shifts = scores.topk(max(1, int(torch.tensor(float(n)).log())), -1)
        out = torch.stack(
            [
                sum(w * v.roll(int(i), 0) for w, i in zip(ws, at, strict=True))
                for ws, at, v in zip(best.softmax(-1), shifts, self.v(x), strict=True)
            ]
        )
        return self.out(out)


def test_gradients_that_only_more_tokens_have() -> None:
    assert found("unused_parameter", seeded(OneOfFew)) == []
