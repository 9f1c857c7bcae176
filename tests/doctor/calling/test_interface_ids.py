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


class OneAhead(Model):
    def allowed(self, n: int, padding: Tensor | None) -> Tensor:
        ahead = torch.ones(n, n, dtype=torch.bool).tril(1)[None, None]
        return ahead if padding is None else ahead & padding[:, None, None].bool()


class Translates(nn.Module):
    """Two embeddings, and two sequences of ids."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(50, 16), nn.Embedding(60, 16)
        self.attention = Attention()

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        return self.attention.attend(self.target(tgt), self.source(src), None)


class Tied(Model):
    """Scaled embeddings, which also give the logits."""

    def __init__(self) -> None:
        super().__init__()
        self.head.weight = self.wte.weight


class RelativeBias(Attention):
    """An embedding that looks up distances, not tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Embedding(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(x, x, None)

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        at = torch.arange(q.shape[2])
        return super().score(q, k) + self.bias((at[:, None] - at).abs().clamp(max=31)).permute(2, 0, 1)


@pytest.mark.slow
def test_a_model_of_ids_is_healthy_or_named() -> None:
    assert diagnose(seeded(Model)).healthy
    assert diagnose(seeded(Tied)).healthy
    assert [x.name for x in diagnose(seeded(ForgetsTheTriangle)).bugs] == ["causal-leak"]
    assert [x.name for x in diagnose(seeded(OneAhead)).bugs] == ["causal-leak"]


def test_its_mask_is_found() -> None:
    masks = Patient(seeded(Model)).interface.masks
    assert [(m.parameter, m.shape, m.form) for m in masks] == [("attention_mask", "BK", "allowed")]


def test_two_sequences_of_ids() -> None:
    interface = Patient(seeded(Translates)).interface
    assert (interface.takes, dict(interface.way.slots)) == ("memory", {"query": "tgt", "memory": "src"})


def test_an_embedding_of_something_else() -> None:
    assert Patient(seeded(RelativeBias)).interface.takes == "self"


def test_an_argument_that_is_named_like_ids_is_never_given_numbers() -> None:
    given: list[torch.dtype] = []

    class Ids(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.attention = nn.Embedding(300, 16), nn.MultiheadAttention(16, 2, batch_first=True)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            given.append(input_ids.dtype)
            x = self.table(input_ids)
            return self.attention(x, x, x)[0]

    assert Patient(Ids()).interface.width == 16
    assert set(given) == {torch.int64}
