"""A key that is hidden and not removed: it keeps a weight, or its NaN spreads."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import NotApplicable, NotChecked
from headwise.nn import MultiHeadAttention
from tests.doctor.laws.specimens import Attention, Causal, Padded, found, one, seeded

LAW = "removing"


class Clears(Padded):
    """padding_mask: [B, N], True = a real token. The others become 0, and are hidden if `masks`."""

    masks = False

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        clean = x if padding_mask is None else torch.where(padding_mask.bool()[..., None], x, 0)
        return self.attend(clean, clean, self.both(None, padding_mask) if self.masks else None)


class Pool(nn.Module):
    """lengths: [B], the number of real tokens of each example."""

    def __init__(self, zeros: bool = False) -> None:
        super().__init__()
        self.key, self.out, self.zeros = nn.Linear(16, 16), nn.Linear(16, 16), zeros
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        real = torch.arange(x.shape[1]) < lengths[:, None]
        scores = self.key(x) @ self.query / 4
        weights = (scores * real if self.zeros else scores.masked_fill(~real, -torch.inf)).softmax(-1)
        return self.out((weights[:, None] @ x)[:, 0])


def mixed(scores: Tensor) -> Tensor:
    """Two heads turn the lowest score into the highest, after the mask."""
    return (scores.clamp(min=-1e4) * torch.tensor([1.0, 1, -1, -1])[:, None, None]).softmax(-1)


@pytest.mark.parametrize("module", [seeded(Clears), seeded(Pool, zeros=True), seeded(Padded, normalise=mixed)])
def test_padding_that_keeps_a_weight(module: nn.Module) -> None:
    findings = [(x.name, x.severity) for x in found(LAW, module) if x.severity != "note"]
    assert findings == [("masked-key-counts", "bug")]


class Pointers(Padded):
    """padding_mask: [B, N], True = a real token. Gives a number for each token, and so a narrower output for fewer."""

    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return self.fill(self.score(self.split(self.q(x)), self.split(self.k(x))), allowed).softmax(-1).mean(1)


@pytest.mark.parametrize("kind", [Padded, Pool, Pointers])
def test_padding_that_is_hidden(kind: type[nn.Module]) -> None:
    assert {x.severity for x in found(LAW, kind)} <= {"note"}


class BesideAConvolution(Padded):
    """padding_mask: [B, K], True = a real token. A convolution of its input goes past the mask."""

    def __init__(self) -> None:
        super().__init__()
        self.near = nn.Conv1d(16, 16, 3, padding=1)

    def forward(self, x: Tensor, padding_mask: Tensor | None = None) -> Tensor:
        return super().forward(x, padding_mask) + self.near(x.mT).mT


def test_what_takes_another_way_is_not_checked() -> None:
    with pytest.raises(NotChecked, match="by another way than attention"):
        found(LAW, BesideAConvolution)
    with pytest.raises(NotApplicable, match="no mask"):
        found(LAW, Causal)


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


def test_zero_times_nan() -> None:
    finding = one(LAW, Attention)
    assert (finding.name, finding.severity) == ("masked-nan-leaks", "note")
    assert finding.numbers == {"rows": 12, "of": 12}  # three examples of four rows other than its own
    for module in (seeded(Clears, masks=True), MultiHeadAttention(16, 4)):
        assert found(LAW, module) == []
