"""Whole models in usual styles that are right and were called wrong: each shows one rule; and twins that are wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence

import headwise
from headwise.doctor.calling.interface import discover
from headwise.doctor.calling.sizes import lengths
from headwise.doctor.checks.sizes import check as sizes
from headwise.doctor.diagnosis import _calls, _on_their_own
from headwise.doctor.patient import Patient
from tests.doctor.checks.specimens import Attention, found, one, seeded
from tests.doctor.laws.scores import one as law


def bugs(module: nn.Module) -> set[str]:
    return {finding.name for finding in headwise.diagnose(module).bugs}


class CausalSelfAttention(Attention):
    """What is masked is its caller's affair."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = (q @ k.mT / 2).masked_fill(mask == 0, float("-inf"))
        return self.out(self.merge(scores.softmax(-1) @ v))


def test_a_causal_name_beside_a_mask_that_every_caller_passes() -> None:
    assert discover(CausalSelfAttention()).causal_claim == ""


class ProteinLM(Attention):
    """Masked language model over residues."""


class OptionalDecoder(Attention):
    def __init__(self, is_decoder: bool = False) -> None:
        super().__init__()
        self.is_decoder = is_decoder

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        cross = memory is not None
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        scores = q @ k.mT / 2
        if self.is_decoder and not cross:
            scores = scores.masked_fill(torch.ones(x.shape[1], x.shape[1]).tril() == 0, float("-inf"))
        return self.out(self.merge(scores.softmax(-1) @ v))


@pytest.mark.parametrize("kind", [ProteinLM, OptionalDecoder])
def test_models_that_are_not_causal(kind: type[nn.Module]) -> None:
    assert discover(seeded(kind)).causal_claim == ""


def test_an_option_that_is_on() -> None:
    assert discover(OptionalDecoder(is_decoder=True)).causal_claim.startswith("code")


def subsequent_mask(n: int) -> Tensor:
    return torch.ones(n, n, dtype=torch.bool).tril()


class MadeElsewhere(Attention):
    def forward(self, x: Tensor) -> Tensor:
        allowed = subsequent_mask(x.shape[1]) | torch.ones(x.shape[1], dtype=torch.bool)
        return self.attend(x, x, allowed)


def test_a_causal_mask_that_another_function_makes() -> None:
    assert "causal-leak" in bugs(seeded(MadeElsewhere))


class Likewise(Attention):
    """
    ``attention_mask`` is broadcast to (batch, heads, query, key): 0.0 where attention is allowed, a large negative
    number where it is not. ``encoder_attention_mask`` is the same for ``encoder_hidden_states``.
    """

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
    ) -> Tensor:
        if encoder_hidden_states is not None:
            attention_mask = encoder_attention_mask
        source = hidden_states if encoder_hidden_states is None else encoder_hidden_states
        q, k, v = self.split(self.q(hidden_states)), self.split(self.k(source)), self.split(self.v(source))
        scores = q @ k.mT / 2
        if attention_mask is not None:
            scores = scores + attention_mask
        return self.out(self.merge(scores.softmax(-1) @ v))


def test_a_mask_that_is_said_to_be_like_another() -> None:
    assert bugs(seeded(Likewise)) == set()


class ByShares(nn.Module):
    """x: (batch, channels, time); lengths: (batch,) relative lengths in (0, 1], all 1 if omitted."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Conv1d(16, 16, 1)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        scores = self.score(x)
        if lengths is not None:
            frames = torch.round(lengths * x.shape[2])
            scores = scores.masked_fill(torch.arange(x.shape[2]) >= frames[:, None, None], float("-inf"))
        return (scores.softmax(2) * x).sum(2, keepdim=True)


def test_lengths_that_are_shares() -> None:
    (mask,) = discover(seeded(ByShares)).masks
    assert (mask.works, mask.means()) == (True, "the share of keys that are real, from the first")
    assert bugs(seeded(ByShares)) == set()


class Clicks(nn.Module):
    """history (B, L) long; hist_len (B,) long, number of clicks, may be 0 for a new user. No softmax, as in DIN."""

    def __init__(self) -> None:
        super().__init__()
        self.items, self.score = nn.Embedding(50, 16), nn.Linear(16, 1)

    def forward(self, history: Tensor, hist_len: Tensor) -> Tensor:
        x = self.items(history)
        weights = self.score(x).squeeze(-1).masked_fill(torch.arange(x.shape[1]) >= hist_len[:, None], 0.0)
        return (weights[:, None] @ x).squeeze(1)


def test_a_number_has_no_polarity() -> None:
    assert bugs(seeded(Clicks)) == set()


class OneSeed(nn.Module):
    """One learned seed pools the set, and then attends to itself alone (Lee et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.seed = nn.Parameter(torch.randn(1, 1, 16))
        self.pool, self.sab = (nn.MultiheadAttention(16, 4, batch_first=True) for _ in range(2))
        self.norm = nn.LayerNorm(16)

    def forward(self, x: Tensor) -> Tensor:
        z = self.pool(self.seed.expand(len(x), -1, -1), x, x)[0]
        return self.norm(z + self.sab(z, z, z)[0])


def test_one_key_leaves_its_projections_without_a_gradient() -> None:
    assert found("unused_parameter", seeded(OneSeed)) == []


class Pointer(nn.Module):
    """Returns the log-probabilities of a pointer (B, N, N), -inf on points that were visited."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(2, 16), nn.Linear(2, 16)

    def forward(self, points: Tensor) -> Tensor:
        n = points.shape[1]
        scores = self.q(points) @ self.k(points).mT / 4
        return functional.log_softmax(scores.masked_fill(torch.ones(n, n).tril(-1).bool(), float("-inf")), -1)


def test_scores_with_a_mask_are_an_output() -> None:
    assert "output-shape" not in bugs(seeded(Pointer))
    assert not {"fails-in-half", "fails-in-double"} & {f.name for f in headwise.diagnose(seeded(Pointer)).findings}


class Taught(nn.Module):
    """src (B, S), src_len (B,) and tgt (B, T) ids with <sos>. Returns logits (B, T - 1, V), teacher-forced."""

    def __init__(self) -> None:
        super().__init__()
        self.src, self.tgt = nn.Embedding(40, 16), nn.Embedding(40, 16)
        self.encoder, self.cell = nn.GRU(16, 16, batch_first=True), nn.GRUCell(32, 16)
        self.query, self.out = nn.Linear(16, 16), nn.Linear(16, 40)

    def forward(self, src: Tensor, src_len: Tensor, tgt: Tensor) -> Tensor:
        keys, _ = self.encoder(self.src(src))
        real = torch.arange(src.shape[1]) < src_len[:, None]
        h = keys[:, -1] * 0
        logits = []
        for t in range(tgt.shape[1] - 1):
            scores = (keys @ self.query(h)[..., None]).squeeze(-1) / 4
            weights = scores.masked_fill(~real, float("-inf")).softmax(-1)
            h = self.cell(torch.cat([self.tgt(tgt[:, t]), (weights[:, None] @ keys).squeeze(1)], -1), h)
            logits.append(self.out(h))
        return torch.stack(logits, 1)


def test_a_decoder_whose_first_token_is_only_a_start() -> None:
    assert Patient(seeded(Taught)).interface.takes == "memory"
    assert bugs(seeded(Taught)) == set()
    assert list(sizes(Patient(seeded(Taught)))) == []


class Newest(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.positions, self.attention = nn.Embedding(64, 16), nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        n = x.shape[1]
        x = x + self.positions(torch.arange(64 - n, 64))
        return self.attention(x, x, x, attn_mask=torch.ones(n, n).triu(1).bool())[0]


class RightAligned(Newest):
    """Histories are padded on the left, so that the newest item always has the same position."""


class FromTheLeft(Newest):
    """Causal."""


def test_positions_that_are_counted_for_the_last() -> None:
    assert found("causal_leak", seeded(RightAligned)) == []
    assert one("causal_leak", seeded(FromTheLeft)).name == "causal-leak"


class Bloom(Attention):
    """
    residual: what the result is added to.
    """

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        return residual + self.attend(hidden_states, hidden_states, None)


def test_a_residual_that_is_an_argument() -> None:
    assert bugs(seeded(Bloom)) == set()


class Performer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))
        self.register_buffer("features", torch.randn(12, 16))

    def phi(self, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        dash = x / 2 @ self.features.T
        return torch.exp(dash - (x**2).sum(-1, keepdim=True) / 8 - dash.amax(dims, keepdim=True).detach()) + 1e-2

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.phi(self.q(x), (-1,)), self.phi(self.k(x), (-1, -2))
        return q @ (k.mT @ self.v(x)) / (q @ k.sum(1)[..., None])


class Detached(Performer):
    def phi(self, x: Tensor, dims: tuple[int, ...]) -> Tensor:
        return super().phi(torch.lerp(x, x.detach(), 0.5), dims)


def test_a_maximum_may_be_detached() -> None:
    assert found("gradient_blocked", seeded(Performer)) == []
    assert one("gradient_blocked", seeded(Detached)).name == "gradient-wrong"


class Spread(nn.Module):
    """mask: (B, N) bool, False on samples that dropped out."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(16, 1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        n = x.shape[1]
        x = x + torch.linspace(-1.0, 1.0, n)[:, None]
        scores = self.score(x).squeeze(-1)
        if mask is not None:
            scores = scores.masked_fill(~mask, float("-inf"))
        return (scores.softmax(-1)[:, None] @ x).squeeze(1)


class AboutAQuestion(nn.Module):
    """
    regions:     (B, R, 16) features
    num_regions: (B,) how many of them are real
    question:    (B, L) word ids
    """

    def __init__(self) -> None:
        super().__init__()
        self.words, self.of_question, self.score = nn.Embedding(50, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, regions: Tensor, num_regions: Tensor, question: Tensor) -> Tensor:
        u = self.of_question(self.words(question).mean(1))
        scores = self.score(torch.tanh(regions + u[:, None])).squeeze(-1)
        hidden = torch.arange(regions.shape[1]) >= num_regions[:, None]
        return u + (scores.masked_fill(hidden, float("-inf")).softmax(-1)[:, None] @ regions).squeeze(1)


@pytest.mark.parametrize("kind", [Spread, AboutAQuestion])
def test_what_changes_with_the_number_of_keys(kind: type[nn.Module]) -> None:
    assert bugs(seeded(kind)) == set()


class Listens(nn.Module):
    """features: (B, T, n_mels); lengths (B,) at least 1."""

    def __init__(self, n_mels: int = 20) -> None:
        super().__init__()
        self.rnn = nn.LSTM(n_mels, 16, batch_first=True)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(features, lengths, batch_first=True, enforce_sorted=False)
        return functional.softmax(self.rnn(packed)[1][0][-1], -1)


def test_an_rnn_is_not_called_with_another_width() -> None:
    assert discover(seeded(Listens)).width == 20


class OfRegions(nn.Module):
    """text: (B, L, text_dim), regions: (B, R, region_dim)"""

    axis = -1

    def __init__(self, text_dim: int = 16, region_dim: int = 12) -> None:
        super().__init__()
        self.q, self.k, self.v = nn.Linear(text_dim, 16), nn.Linear(region_dim, 16), nn.Linear(region_dim, text_dim)

    def forward(self, text: Tensor, regions: Tensor) -> Tensor:
        scores = self.q(text) @ self.k(regions).mT / 4
        return text + scores.softmax(self.axis) @ self.v(regions)


class OverTheText(OfRegions):
    axis = 1


def test_a_memory_is_told_by_its_length() -> None:
    assert discover(seeded(OfRegions)).way.slots == (("query", "text"), ("memory", "regions"))
    assert bugs(seeded(OfRegions)) == set()
    assert "softmax-axis" in bugs(seeded(OverTheText))


class Pooled(nn.Module):
    """Returns (batch, dim), (batch, frames)."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.score(x).squeeze(-1).softmax(1)
        return self.reduced(weights[..., None] * x), weights

    def reduced(self, x: Tensor) -> Tensor:
        return x.sum(1)


class PooledByTheMean(Pooled):
    def reduced(self, x: Tensor) -> Tensor:
        return x.mean(1)


def test_a_weighted_sum_that_is_divided_by_its_length() -> None:
    assert discover(seeded(Pooled)).way.output_at == (0,)
    assert found("pooled_mean", seeded(Pooled)) == []
    assert one("pooled_mean", seeded(PooledByTheMean)).name == "normaliser-wrong"


class Latent(Attention):
    """Heads of two parts, as in DeepSeek-V2."""

    def __init__(self, part: int = 4) -> None:
        super().__init__()
        self.softmax_scale = (part // 2) ** -0.5

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        return self.out(self.merge((q @ k.mT * self.softmax_scale).softmax(-1) @ v))


def test_a_scale_that_is_computed_is_not_stated() -> None:
    finding = law("scale", seeded(Latent))
    assert finding.numbers["scale"] == pytest.approx(1 / math.sqrt(2))


class OfPoints(nn.Module):
    """Points of width 3 become 16 wide, and are split into 4 heads; ReLU leaves some features without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = 4
        self.wide, self.attention = nn.Linear(3, 16), Attention()
        self.hidden, self.out = nn.Linear(16, 16), nn.Linear(16, 5)
        with torch.no_grad():
            self.hidden.bias[-3:] = -100.0

    def forward(self, points: Tensor) -> Tensor:
        x = self.wide(points)
        return self.out(self.hidden(self.attention.attend(x, x, None)).relu())


def test_the_width_of_the_input_need_not_be_that_of_the_heads() -> None:
    assert found("heads_dividing", seeded(OfPoints)) == []


class OfPixels(nn.Module):
    """
    images:    (B, 3, H, W)
    pixel_pad: (B, H, W) bool, True on padded pixels
    """

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.attention = nn.Conv2d(3, 16, 1), nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, images: Tensor, pixel_pad: Tensor) -> Tensor:
        x = self.patches(images.masked_fill(pixel_pad[:, None], 0.0)).flatten(2).mT
        return self.attention(x, x, x, key_padding_mask=pixel_pad.flatten(1))[0]


def test_images_with_a_mask_of_their_pixels() -> None:
    assert discover(seeded(OfPixels)).way.layout == "BMHW"
    assert bugs(seeded(OfPixels)) == set()


class Aware(nn.Module):
    """Location-aware attention, whose keys its model projects once."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.query, self.energy = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)
        self.place = nn.Conv1d(1, 16, 3, padding=1)

    def forward(self, state: Tensor, keys: Tensor, memory: Tensor, before: Tensor, mask: Tensor) -> Tensor:
        place = self.place(before[:, None]).mT
        scores = self.energy(torch.tanh(keys + self.query(state)[:, None] + place)).squeeze(-1)
        return (scores.masked_fill(~mask, float("-inf")).softmax(-1)[:, None] @ memory).squeeze(1)


class Speller(nn.Module):
    """features: (B, T, 16), lengths: (B,) at least 1"""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.first = Aware(), nn.Linear(16, 16)

    def forward(self, features: Tensor, lengths: Tensor) -> Tensor:
        mask = torch.arange(features.shape[1]) < lengths[:, None]
        before = mask / mask.sum(1, keepdim=True)
        state = self.first((before[:, None] @ features).squeeze(1))
        return self.attention(state, self.attention.key(features), features, before, mask)


def test_a_part_whose_projection_the_whole_uses() -> None:
    patient = Patient(seeded(Speller))
    assert patient.interface.takes == "self"
    parts = {"attention": patient.module.get_submodule("attention")}
    findings, lines = _on_their_own(parts, None, _calls(patient, parts))
    assert len(lines) == 1
    assert "unused-parameter" not in {x.name for x in findings}


class Recurs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.rnn = nn.Embedding(4000, 16), nn.GRU(16, 16)


def test_an_rnn_is_not_tried_with_as_many_tokens_as_words() -> None:
    assert max(lengths(Recurs())) <= 512
