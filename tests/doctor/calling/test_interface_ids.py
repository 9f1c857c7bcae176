"""Models that take token ids: numbers are passed in place of the embeddings, so that every check works through them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from headwise.doctor import diagnose
from headwise.doctor.patient import Patient
from tests.doctor.checks.specimens import Attention, seeded


class Block(Attention):
    def attend(self, x: Tensor, memory: Tensor, allowed: Tensor | None) -> Tensor:
        return x + super().attend(nn.functional.layer_norm(x, x.shape[-1:]), memory, allowed)


class Model(nn.Module):
    """A causal language model. attention_mask: [B, N], 1 = a token, 0 = padding."""

    def __init__(self, words: int = 50, width: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(words, width), nn.Embedding(40, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, words, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        n = input_ids.shape[1]
        h = self.wte(input_ids) + self.wpe(torch.arange(n))
        allowed = self.allowed(n, attention_mask)
        for block in self.blocks:
            h = block.attend(h, h, allowed)
        return self.head(h)

    def allowed(self, n: int, padding: Tensor | None) -> Tensor:
        causal = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
        if padding is None:
            return causal
        return (causal & padding[:, None, None].bool()) | torch.eye(n, dtype=torch.bool)  # no row is empty


class ForgetsTheTriangle(Model):
    def allowed(self, n: int, padding: Tensor | None) -> Tensor:
        return super().allowed(n, None) if padding is None else padding[:, None, None].bool()


class Translates(nn.Module):
    """Two embeddings, and two sequences of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, 16), nn.Embedding(60, 16)
        self.attention = Attention()

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.attention.attend(self.target(tgt), self.source(src), None)


@pytest.mark.slow
def test_a_model_of_ids_is_healthy_or_named() -> None:
    assert diagnose(seeded(Model)).healthy
    assert [x.name for x in diagnose(seeded(ForgetsTheTriangle)).bugs] == ["causal-leak"]


def test_its_mask_is_found() -> None:
    masks = Patient(seeded(Model)).interface.masks
    assert [(m.parameter, m.shape, m.form) for m in masks] == [("attention_mask", "BK", "allowed")]


def test_two_sequences_of_ids() -> None:
    interface = Patient(seeded(Translates)).interface
    assert (interface.takes, dict(interface.way.slots)) == ("memory", {"query": "tgt", "memory": "src"})
