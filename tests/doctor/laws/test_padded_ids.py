"""Masks that modules make of their token ids, and what stands in padding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor.patient import NotApplicable, NotChecked
from tests.doctor.laws.specimens import Attention, found, one, seeded

LAW = "padded_ids"


class Encoder(Attention):
    """src: token ids [B, N]. `hidden`: what becomes of scores, and of which tokens are real."""

    def __init__(self, pad_idx: int = 0, **parts: Any) -> None:
        super().__init__(**parts)
        self.src_pad_idx = pad_idx
        self.embedding, self.position = nn.Embedding(20, 16), nn.Embedding(16, 16)

    def forward(self, src: Tensor) -> Tensor:
        x = self.embedding(src) + self.position(torch.arange(src.shape[1]))
        return self.attend(x, x, src != self.src_pad_idx)

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        return self.hidden(scores, allowed)

    def hidden(self, scores: Tensor, real: Tensor) -> Tensor:
        return scores.masked_fill(~real[:, None, None], -torch.inf)


@pytest.mark.parametrize(
    ("hidden", "pad", "name"),
    [
        (lambda x, real: x.masked_fill(~real.unsqueeze(1).unsqueeze(3), -1e9), 0, "mask-broadcast"),
        (lambda x, real: x + real[:, None, None].float(), 3, "mask-added"),
        (lambda x, real: x * real[:, None, None], 0, "mask-multiplied"),
    ],
)
def test_a_mask_of_ids_that_hides_no_key(hidden: Any, pad: int, name: str) -> None:
    finding = one(LAW, seeded(Encoder, pad, hidden=hidden))
    assert (finding.name, finding.severity) == (name, "bug")


def of_both(scores: Tensor, real: Tensor) -> Tensor:
    return scores.masked_fill(~(real[:, None, None] & real[:, None, :, None]), -1e9)


def test_healthy_masks() -> None:
    for module in (seeded(Encoder), seeded(Encoder, hidden=of_both)):
        assert found(LAW, module) == []
    for module in (seeded(Encoder, hidden=lambda scores, _: scores), seeded(Attention)):
        with pytest.raises(NotApplicable):  # its caller may pass what is padding in another way
            found(LAW, module)


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
    finding = one(LAW, seeded(Translator, forgets=True))
    assert (finding.name, finding.severity) == ("padding-read", "bug")
    assert "src's ids hides padding inside the encoder" in finding.evidence
    assert found(LAW, seeded(Translator, forgets=False)) == []


class Text(nn.Module):
    """ids [B, N] -> [B, 8]: one vector for each text, the mean over real tokens; id 0 is padding.

    `pool`: a vector of the rows [B, N, 16] and of which are real; `mask`: what of these is attended to.
    """

    def __init__(self, padding_idx: int | None = 0, **parts: Any) -> None:
        super().__init__()
        self.words, self.attention = nn.Embedding(50, 16, padding_idx=padding_idx), Attention()
        self.head = nn.Linear(16, 8)
        self.__dict__.update(parts)

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != 0
        x = self.words(ids)
        return self.head(self.pool(x + self.attention(x, padding_mask=self.mask(real)), real))

    def mask(self, real: Tensor) -> Tensor:
        return real

    def pool(self, x: Tensor, real: Tensor) -> Tensor:
        weights = real[..., None] / real.sum(1)[:, None, None].clamp(min=1)
        return (x * weights).sum(1)


def mean(x: Tensor, _: Tensor) -> Tensor:
    return x.mean(1)


@pytest.mark.parametrize(
    ("module", "severity"),
    [
        (seeded(Text, None, pool=mean), "bug"),  # the row of padding is trained as any other
        (seeded(Text, pool=mean), "risk"),
        (seeded(Text, mask=lambda real: nn.functional.pad(real, (1, 0), value=True)[:, :-1]), "bug"),
    ],
)
def test_padding_that_reaches_the_output(module: nn.Module, severity: str) -> None:
    finding = one(LAW, module)
    assert (finding.name, finding.severity) == ("padding-read", severity)
    assert finding.numbers["after"] > 1e-4 < finding.numbers["before"]


def test_padding_that_is_hidden_or_meant_for_one_side() -> None:
    last = seeded(Text, pool=lambda x, _: x[:, -1])  # of a text with padding on the left
    for module in (seeded(Text), last):
        assert found(LAW, module) == []
    beside = seeded(Text, pool=mean)
    beside.near = nn.GRU(16, 16)
    with pytest.raises(NotChecked, match="or an RNN"):
        found(LAW, beside)
