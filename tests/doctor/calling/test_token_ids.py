"""Whole models that take token ids are examined on embeddings."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import headwise
from headwise.doctor.patient import Patient


class Model(nn.Module):
    """A causal language model as nanoGPT; attn_mask [B, N]: 1 = a token, 0 = padding."""

    def __init__(self, forgets: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.forgets = forgets
        self.wte, self.wpe = nn.Embedding(40, 16), nn.Embedding(32, 16)
        self.qkv, self.head = nn.Linear(16, 48), nn.Linear(16, 40, bias=False)

    def forward(self, idx: Tensor, attn_mask: Tensor | None = None, targets: Tensor | None = None) -> tuple[Any, ...]:
        n = idx.shape[1]
        x = self.wte(idx) + self.wpe(torch.arange(n))
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        allowed = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
        if attn_mask is not None:
            padding = attn_mask[:, None, None, :].bool()
            allowed = padding.expand(-1, 1, n, -1) if self.forgets else allowed & padding
        scores = (q @ k.mT / 2).masked_fill(~allowed, torch.finfo(x.dtype).min)
        logits = self.head(x + (scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        loss = None if targets is None else nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        return logits, loss


def test_a_model_that_forgets_the_causal_mask_where_there_is_padding() -> None:
    found = headwise.diagnose(Model(forgets=True))
    assert [x.name for x in found.bugs] == ["causal-leak"]
    assert "with `attn_mask` passed" in found.bugs[0].evidence
    assert found.understood[0].startswith("forward(idx")


def test_a_healthy_model_of_token_ids_that_still_takes_ids() -> None:
    model = Model()
    ids = torch.randint(0, 40, (2, 6))
    for example in (None, ((ids,), {"attn_mask": torch.ones(2, 6, dtype=torch.long)})):
        found = headwise.diagnose(model, example=example)
        assert found.healthy, str(found)
    assert type(model) is Model
    assert model(ids)[0].shape == (2, 6, 40)
    assert all(p.requires_grad for p in model.parameters())
    masks = Patient(model).interface.masks
    assert [(m.parameter, m.shape, m.form) for m in masks] == [("attn_mask", "BK", "allowed")]
