"""Healthy modules: attention that others trust, and habits that were once taken for mistakes. None is called wrong.

More of them, by the hundred: `healthy_*` of benchmarks/blind, the fixed halves of benchmarks/wild, and
`python -m tests.doctor.families`.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise import nn as ours
from headwise.nn.positions import Rope
from tests.doctor.calling.test_interface_models import bert, deepseek, gpt2, llama, t5, vit
from tests.doctor.laws.specimens import Attention, Causal, Cross, seeded


class Clips(Attention):
    """x attends to memory; masks [B, N] are True at padding. Rows of padding of x are the caller's business."""

    def forward(
        self, x: Tensor, memory: Tensor, x_mask: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> Tensor:
        return self.attend(x, memory, None if memory_mask is None else ~memory_mask[:, None, None, :])


class Padded(Attention):
    """Causal. attention_mask [B, N]: 1 for tokens, 0 for padding; padding attends to itself."""

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        n = x.shape[1]
        allowed = torch.ones(n, n, dtype=torch.bool).tril()[None, None]
        if attention_mask is not None:
            allowed = (allowed & attention_mask[:, None, None, :].bool()) | torch.eye(n, dtype=torch.bool)
        return self.attend(x, x, allowed)


class Edges(Attention):
    """adj: [B, Q, K], weights of edges, 0 = none."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((4, 1, 1), 0.7))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        logs = torch.where(adj != 0, adj, torch.ones_like(adj)).log()[:, None]
        scores = (q @ k.mT / 2 + self.gain * logs).masked_fill((adj == 0)[:, None], -1e9)
        return self.out(self.merge(scores.softmax(-1) @ v))


class Normed(Attention):
    """Queries and keys of norm sqrt(width) with learned gains, without a scale, as in NaViT."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(4))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (functional.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.gamma for x in (q, k))
        return q @ k.mT


TRUSTED: dict[str, Callable[[], nn.Module]] = {
    "torch": lambda: nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True),
    "torch, length first": lambda: nn.MultiheadAttention(32, 4, kdim=16, vdim=24),
    "torch, encoder layer": lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
    "torch, decoder layer": lambda: nn.TransformerDecoderLayer(32, 4, 64),
    "ours": lambda: ours.MultiHeadAttention(32, 4, dropout=0.1),
    "ours, grouped and rotary": lambda: ours.MultiHeadAttention(32, 4, num_kv_heads=2, positions=Rope(8)),
    "ours, sinks and gate": lambda: ours.MultiHeadAttention(32, 4, sinks=True, gate=True, qk_norm="rms"),
    "ours, latent": lambda: ours.MultiHeadLatentAttention(
        32, 4, q_rank=16, kv_rank=16, nope_dim=8, rope_dim=4, value_head_dim=8
    ),
    "ours, softcap": lambda: ours.MultiHeadAttention(32, 4, softcap=20.0),
    "ours, one projection for all heads": lambda: ours.MultiHeadAttention(32, 4, projection="shared"),
    "ours, latents": lambda: ours.LatentAttention(4, 32, num_heads=4),
    "ours, decoder": lambda: ours.Decoder(32, num_layers=2, num_heads=4, ffn_dim=64),
    "bert": lambda: bert("BertAttention", "sdpa"),
    "gpt2": lambda: gpt2("sdpa"),
    "llama": lambda: llama("eager"),
    "vit": lambda: vit("eager"),
    "t5": lambda: t5("eager", has_relative_attention_bias=True),
    "t5, without a bias of its own": lambda: t5("eager", has_relative_attention_bias=False),
    "deepseek": lambda: deepseek("sdpa"),
    "plain": lambda: Attention(32, dropout=0.1),
    "causal": lambda: Causal(32),
    "cross": lambda: Cross(32),
}
SLOW = ("ours, softcap", "ours, decoder", "torch, decoder layer")  # what a quicker one of them is too


HABITS = (Clips, Padded, Edges, Normed)
X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(3))
GRAPH = (X, X.new_ones(2, 6, 6).tril() + 0.1)  # which cannot be invented


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in TRUSTED]
)
def test_attention_that_others_trust(name: str) -> None:
    torch.manual_seed(0)
    module = TRUSTED[name]()
    before = {key: x.clone() for key, x in module.state_dict().items()}
    diagnosis = headwise.diagnose(module)
    assert diagnosis.bugs == ()
    assert len(diagnosis.understood) > 1
    assert all(torch.equal(x, before[key]) for key, x in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize("kind", HABITS)
def test_habits_that_were_taken_for_mistakes(kind: type[nn.Module]) -> None:
    diagnosis = headwise.diagnose(seeded(kind), example=GRAPH if kind is Edges else None)
    assert diagnosis.healthy, str(diagnosis)
