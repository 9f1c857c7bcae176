"""Masks made of token ids."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.checks.specimens import Attention, found, one, seeded


class Encoder(nn.Module):
    """src: token ids [B, N]."""

    def __init__(self, pad_idx: int = 0) -> None:
        super().__init__()
        self.src_pad_idx = pad_idx
        self.embedding, self.attention = nn.Embedding(20, 16), Attention()

    def forward(self, src: Tensor) -> Tensor:
        x = self.embedding(src)
        found: Tensor = self.attention.attend(x, x, self.laid(src != self.src_pad_idx))
        return found

    def laid(self, real: Tensor) -> Tensor | None:
        return real[:, None, None, :]


class HidesQueries(Encoder):
    def laid(self, real: Tensor) -> Tensor | None:
        return real.unsqueeze(1).unsqueeze(3)


class HidesBoth(Encoder):
    def laid(self, real: Tensor) -> Tensor | None:
        return real[:, None, None, :] & real[:, None, :, None]


class Unmasked(Encoder):
    """Its caller may pass what is padding in another way."""

    def laid(self, real: Tensor) -> Tensor | None:
        return None


@pytest.mark.parametrize("pad", [0, 3])
def test_a_mask_of_queries(pad: int) -> None:
    finding = one("pad_tokens", seeded(HidesQueries, pad))
    assert (finding.name, finding.severity) == ("mask-broadcast", "bug")
    assert "2 of 6 queries" in finding.evidence


def test_healthy_ones() -> None:
    for kind in (Encoder, HidesBoth, Unmasked):
        assert found("pad_tokens", seeded(kind)) == []
    with pytest.raises(NotApplicable):
        found("pad_tokens", seeded(Attention))


class Pooled(Encoder):
    """One vector for each example: the mean over heads of a learned query."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, src: Tensor) -> Tensor:
        x = self.embedding(src)
        weights = self.hidden(x @ self.query / 4, src != self.src_pad_idx).softmax(-1)
        return self.attention.out((weights[:, None] @ x)[:, 0])

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real, -torch.inf)


class PooledOfZeros(Pooled):
    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores * real


class TokensOfZeros(Encoder):
    def forward(self, src: Tensor) -> Tensor:
        x = self.embedding(src)
        q, k, v = (self.attention.split(part(x)) for part in (self.attention.q, self.attention.k, self.attention.v))
        scores = self.attention.score(q, k) * (src != self.src_pad_idx)[:, None, None]
        return self.attention.out(self.attention.merge(scores.softmax(-1) @ v))


@pytest.mark.parametrize("kind", [PooledOfZeros, TokensOfZeros])
def test_the_number_of_padding_tokens_must_not_matter(kind: type[nn.Module]) -> None:
    finding = one("pad_tokens", seeded(kind))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert found("pad_tokens", seeded(Pooled)) == []


class Recurrent(Pooled):
    """An LSTM in both directions reads the real tokens, and a learned query its states."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 8, batch_first=True, bidirectional=True)

    def forward(self, src: Tensor) -> Tensor:
        real = src != self.src_pad_idx
        x = self.read(self.embedding(src), real)
        weights = self.hidden(x @ self.query / 4, real).softmax(-1)
        return self.attention.out((weights[:, None] @ x)[:, 0])

    def read(self, x: Tensor, real: Tensor) -> Tensor:
        lengths = real.sum(1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return nn.utils.rnn.pad_packed_sequence(self.lstm(packed)[0], batch_first=True, total_length=x.shape[1])[0]


class RecurrentOfZeros(Recurrent):
    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores * real


class ReadsPadding(RecurrentOfZeros):
    """Its LSTM reads padding, too: that is another matter."""

    def read(self, x: Tensor, real: Tensor) -> Tensor:
        return self.lstm(x)[0]


def test_padding_behind_a_recurrent_network() -> None:
    finding = one("pad_tokens", seeded(RecurrentOfZeros))
    assert (finding.name, finding.severity) == ("masked-key-counts", "bug")
    assert found("pad_tokens", seeded(Recurrent)) == []
    with pytest.raises(NotChecked, match="an RNN brings"):
        found("pad_tokens", seeded(ReadsPadding))
