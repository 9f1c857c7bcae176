"""Masks that modules make of their token ids, and what stands in padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.laws.specimens import Attention, Causal, found, one, seeded


class Encoder(nn.Module):
    """src: token ids [B, N]."""

    def __init__(self, pad_idx: int = 0) -> None:
        super().__init__()
        self.src_pad_idx = pad_idx
        self.embedding, self.position, self.attention = nn.Embedding(20, 16), nn.Embedding(16, 16), Attention()

    def forward(self, src: Tensor) -> Tensor:
        x = self.embedding(src) + self.position(torch.arange(src.shape[1]))
        q, k, v = (self.attention.split(part(x)) for part in (self.attention.q, self.attention.k, self.attention.v))
        scores = self.hidden(self.attention.score(q, k), src != self.src_pad_idx)
        return self.attention.out(self.attention.merge(scores.softmax(-1) @ v))

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real[:, None, None], -torch.inf)


class HidesBoth(Encoder):
    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~(real[:, None, None] & real[:, None, :, None]), -1e9)


class Unmasked(Encoder):
    """Its caller may pass what is padding in another way."""

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores


class HidesQueries(Encoder):
    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real.unsqueeze(1).unsqueeze(3), -1e9)


class Adds(Encoder):
    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores + real[:, None, None].float()


class Multiplies(Encoder):
    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores * real[:, None, None]


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize(
    ("kind", "name"), [(HidesQueries, "mask-broadcast"), (Adds, "mask-added"), (Multiplies, "mask-multiplied")]
)
def test_a_mask_of_ids_that_hides_no_key(kind: type[nn.Module], name: str, pad: int) -> None:
    finding = one("padded_ids", seeded(kind, pad))
    assert (finding.name, finding.severity) == (name, "bug")


def test_healthy_masks() -> None:
    for kind in (Encoder, HidesBoth):
        assert found("padded_ids", seeded(kind)) == []
    for kind in (Unmasked, Attention):
        with pytest.raises(NotApplicable):
            found("padded_ids", seeded(kind))


class Translator(nn.Module):
    """src: [B, S], tgt: [B, T]; 0 = padding"""

    def __init__(self, forgets: bool) -> None:
        super().__init__()
        self.forgets, self.pad = forgets, 0
        self.embed, self.encoder, self.cross = nn.Embedding(20, 16), Attention(), Attention()

    def forward(self, src: Tensor, tgt: Tensor) -> Any:
        real = (src != self.pad)[:, None, None]
        x = self.embed(src)
        memory = x + self.encoder.attend(x, x, real)
        y = self.embed(tgt)
        return y + self.cross.attend(y, memory, None if self.forgets else real)


def test_padding_of_the_source_that_reaches_the_decoder() -> None:
    finding = one("padded_ids", seeded(Translator, forgets=True))
    assert (finding.name, finding.severity) == ("padding-read", "bug")
    assert "src's ids hides padding inside the encoder" in finding.evidence
    assert found("padded_ids", seeded(Translator, forgets=False)) == []


class Text(nn.Module):
    """ids [B, N] -> [B, 8]: one vector for each text, the mean over real tokens; id 0 is padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention, self.head = nn.Embedding(50, 16, padding_idx=0), Attention(), nn.Linear(16, 8)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != 0
        x = self.words(ids)
        return self.head(self.pool(x + self.attention(x, padding_mask=self.mask(real)), real))

    def mask(self, real: Tensor) -> Tensor:
        return real

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        weights = real[..., None] / real.sum(1)[:, None, None].clamp(min=1)
        return (x * weights).sum(1)


class MeanOfAll(Text):
    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        return x.mean(1)


class MeanOfAllRows(MeanOfAll):
    """The row of padding is trained as any other."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(50, 16)


class ShiftedMask(Text):
    def mask(self, real: Tensor) -> Tensor:
        return nn.functional.pad(real, (1, 0), value=True)[:, :-1]


class LastOne(Text):
    """ids [B, N] -> [B, 8]: the last row of a text with padding on the left; id 0 is padding."""

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        return x[:, -1]


class Tower(nn.Module):
    """ids [B, N] -> [B, 8]: causal; the row of the last token, which padding (0) may follow."""

    past = 1

    def __init__(self) -> None:
        super().__init__()
        self.words, self.attention, self.head = nn.Embedding(50, 16), Causal(), nn.Linear(16, 8)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        last = ((ids != 0).sum(1) - self.past).clamp(min=0, max=ids.shape[1] - 1)
        return self.head((x + self.attention(x))[torch.arange(len(x)), last])


class OneTooLate(Tower):
    past = 0


@pytest.mark.parametrize(
    ("kind", "severity"), [(MeanOfAllRows, "bug"), (ShiftedMask, "bug"), (OneTooLate, "bug"), (MeanOfAll, "risk")]
)
def test_padding_that_reaches_the_output(kind: type[nn.Module], severity: str) -> None:
    finding = one("padded_ids", seeded(kind))
    assert (finding.name, finding.severity) == ("padding-read", severity)
    assert finding.numbers["after"] > 1e-4 < finding.numbers["before"]


@pytest.mark.parametrize("kind", [Text, LastOne, Tower])
def test_padding_that_is_hidden_or_meant_for_one_side(kind: type[nn.Module]) -> None:
    assert found("padded_ids", seeded(kind)) == []


class GivenAMask(Text):
    """ids [B, N] -> [B, 8]; only its positions depend on which ids are padding (0), and its caller passes the mask."""

    def forward(self, ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x = self.words(ids) + 0.1 * (ids != 0).cumsum(1)[..., None]
        return self.head((x + self.attention(x, padding_mask=attention_mask)).mean(1))


class Recurrent(Text):
    """A GRU reads all tokens: that is another matter."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(16, 16, batch_first=True)

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        return self.gru(x)[0].mean(1)


def test_one_that_is_told_or_reads_its_neighbours() -> None:
    assert found("padded_ids", seeded(GivenAMask)) == []
    with pytest.raises(NotChecked, match="or an RNN"):
        found("padded_ids", seeded(Recurrent))
