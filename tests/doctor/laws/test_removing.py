"""A key that is hidden and not removed: it keeps a weight, its NaN spreads, or another token is hidden."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable, NotChecked
from headwise.nn import MultiHeadAttention
from tests.doctor.laws.specimens import Attention, Causal, found, seeded


def names(module: nn.Module) -> list[tuple[str, str]]:
    return [(x.name, x.severity) for x in found("removing", module) if x.severity != "note"]


class Padded(Attention):
    """padding_mask: [B, K], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.attend(x, x, None if padding_mask is None else self.lay(padding_mask.bool()))

    def lay(self, padding: Tensor) -> Tensor:
        return padding[:, None, None]


class ClearsTokens(Padded):
    """padding_mask: [B, N], True = a real token."""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return self.attend(x if padding_mask is None else x * padding_mask[..., None], x, None)

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return super().attend(x, x, allowed)


class Pool(nn.Module):
    """lengths: [B], the number of real tokens of each example."""

    def __init__(self) -> None:
        super().__init__()
        self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 16)
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(x.shape[1]) < lengths[:, None]
        weights = self.hidden(self.key(x) @ self.query / 4, real).softmax(-1)
        return self.out((weights[:, None] @ x)[:, 0])

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real, -torch.inf)


class PoolOfZeros(Pool):
    """lengths: [B], the number of real tokens of each example."""

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores * real


class OfOneQuery(nn.Module):
    """query: [B, 8]; keys: [B, T, 12]; mask: [B, T] float, 1 for valid positions, 0 for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.of_query, self.of_keys, self.v = nn.Linear(8, 16), nn.Linear(12, 16), nn.Linear(16, 1)

    def forward(self, query: Tensor, keys: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        energy = self.v(torch.tanh(self.of_query(query)[:, None] + self.of_keys(keys)))[..., 0]
        weights = self.weigh(energy, mask)
        return (weights[:, None] @ keys)[:, 0], weights

    def weigh(self, energy: Tensor, mask: Tensor | None) -> Tensor:
        return (energy if mask is None else energy.masked_fill(mask == 0, -torch.inf)).softmax(-1)


class MasksItsWeights(OfOneQuery):
    """query: [B, 8]; keys: [B, T, 12]; mask: [B, T] float, 1 for valid positions, 0 for padding."""

    def weigh(self, energy: Tensor, mask: Tensor | None) -> Tensor:
        return energy.softmax(-1) * (1 if mask is None else mask)


class MixedAfterTheMask(Padded):
    """padding_mask: [B, N], True = a real token. Two heads turn the lowest score into the highest."""

    def normalise(self, scores: Tensor) -> Tensor:
        return (scores.clamp(min=-1e4) * torch.tensor([1.0, 1, -1, -1])[:, None, None]).softmax(-1)


@pytest.mark.parametrize("kind", [ClearsTokens, PoolOfZeros, MasksItsWeights, MixedAfterTheMask])
def test_padding_that_keeps_a_weight(kind: type[nn.Module]) -> None:
    assert names(seeded(kind)) == [("masked-key-counts", "bug")]


class Pointers(Padded):
    """padding_mask: [B, N], True = a real token. Gives a number for each token, and so a narrower output for fewer."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(self.score(self.split(self.q(x)), self.split(self.k(x))), allowed).softmax(-1).mean(1)


@pytest.mark.parametrize("kind", [Padded, Pool, OfOneQuery, Pointers])
def test_padding_that_is_hidden(kind: type[nn.Module]) -> None:
    assert names(seeded(kind)) == []


class BesideAConvolution(Padded):
    """padding_mask: [B, K], True = a real token. A convolution of its input goes past the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, padding_mask) + self.near(x.mT).mT


def test_what_takes_another_way_is_not_checked() -> None:
    with pytest.raises(NotChecked, match="by another way than attention"):
        found("removing", seeded(BesideAConvolution))
    assert headwise.diagnose(seeded(BesideAConvolution)).bugs == ()
    with pytest.raises(NotApplicable, match="no mask"):
        found("removing", seeded(Causal))


class LuongDecoder(nn.Module):
    """One step of a decoder with global attention (Luong et al. 2015).

    token:       (batch,) the target token before
    hidden:      (1, batch, hidden)
    enc_outputs: (src_len, batch, hidden)
    src_mask:    (batch, src_len), 0 on <pad>
    """

    def __init__(self, fill: float = -1e9, of_the_batch: bool = False) -> None:
        super().__init__()
        self.fill, self.of_the_batch = fill, of_the_batch
        self.embedding, self.rnn = nn.Embedding(40, 8), nn.GRU(8, 16)
        self.w, self.mix, self.out = nn.Linear(16, 16, bias=False), nn.Linear(32, 16), nn.Linear(16, 40)

    def forward(
        self, token: Tensor, hidden: Tensor, enc_outputs: Tensor, src_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        output, hidden = self.rnn(self.embedding(token)[None], hidden)
        scores = (self.w(enc_outputs) * output).sum(-1)  # (src_len, batch)
        if src_mask is not None:
            scores = scores.masked_fill(src_mask.mT == 0, self.fill)
        weights = scores.softmax(1 if self.of_the_batch else 0)
        read = (weights[..., None] * enc_outputs).sum(0)
        return self.out(self.mix(torch.cat([read, output[0]], -1)).tanh()), hidden


def test_a_step_of_a_decoder() -> None:
    """Its state is (1, batch, hidden), it returns logits beside the new state, and its RNN begins from 0."""
    healthy = headwise.diagnose(seeded(LuongDecoder))
    assert not healthy.bugs
    assert not any("Error" in reason for reason in healthy.unchecked.values()), healthy.unchecked
    assert [x.name for x in headwise.diagnose(seeded(LuongDecoder, 1e-10)).bugs] == ["masked-key-counts"]
    assert "batch-mixing" in {x.name for x in headwise.diagnose(seeded(LuongDecoder, of_the_batch=True)).bugs}


class Cleans(Attention):
    """padding_mask: [B, K], True = a real token"""

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        clean = x if padding_mask is None else torch.where(padding_mask[..., None], x, 0)
        return self.attend(x, clean, self.both(None, padding_mask))


def test_zero_times_nan() -> None:
    (finding,) = found("removing", seeded(Attention))
    assert (finding.name, finding.severity) == ("masked-nan-leaks", "note")
    assert finding.numbers == {"rows": 12, "of": 12}  # three examples of four rows other than its own
    for module in (seeded(Cleans), MultiHeadAttention(16, 4)):
        assert found("removing", module) == []


class HidesQueries(Padded):
    def lay(self, padding: Tensor) -> Tensor:
        return padding[:, None, :, None]


class TakenForCells(Padded):
    """[B, K] against [B, H, Q, K] meets the last two."""

    def lay(self, padding: Tensor) -> Tensor:
        return padding


class TakenForHeads(Padded):
    def lay(self, padding: Tensor) -> Tensor:
        return padding[:, None]


@pytest.mark.parametrize(
    ("kind", "heads", "severity", "words", "numbers"),
    [
        (HidesQueries, 4, "bug", "hides queries", {"rows": 3, "of": 15}),
        (TakenForCells, 4, "risk", "[Q, K], since both have 4 rows", {"examples": 3, "of": 3}),
        (TakenForHeads, 2, "risk", "[H, K], since both have 2 rows", {"examples": 1, "of": 1}),
    ],
)
def test_a_mask_that_meets_another_axis(
    kind: type[nn.Module], heads: int, severity: str, words: str, numbers: dict[str, float]
) -> None:
    finding = next(x for x in found("removing", seeded(kind, heads=heads)) if x.name == "mask-broadcast")
    assert finding.severity == severity
    assert words in finding.evidence
    assert finding.numbers == numbers
