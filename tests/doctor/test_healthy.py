"""Healthy modules: attention that others trust, and habits that were once taken for mistakes. None is called wrong.

More of them, by the hundred: `healthy_*` of benchmarks/blind, and the fixed halves of benchmarks/wild.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise import nn as ours
from headwise.nn.positions import Rope
from tests.doctor.calling.test_interface_models import bert, deepseek, gpt2, llama, t5, vit
from tests.doctor.laws.specimens import Attention, Causal, Cross, seeded


class Joint(Attention):
    """Two streams attend to both; returns the pair."""

    def forward(self, hidden_states: Tensor, context: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([hidden_states, context], 1)
        out = self.attend(both, both, None)
        return out[:, : hidden_states.shape[1]], out[:, hidden_states.shape[1] :]


class Labels(Attention):
    """One learned query for each of five labels; attention_mask [B, N]: 1 for tokens, 0 for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.labels = nn.Parameter(torch.randn(5, 16))

    def forward(self, x: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.attend(self.labels.expand(len(x), -1, -1), x, self.both(None, attention_mask))


class Seeds(nn.Module):
    """Learned queries that are the same for all examples pool a set (Lee et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds, self.kv, self.o = nn.Parameter(torch.randn(2, 4, 4)), nn.Linear(16, 32), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        k, v = (t.unflatten(-1, (4, 4)) for t in self.kv(x).chunk(2, -1))
        weights = (torch.einsum("mhd,bnhd->bhmn", self.seeds, k) / 2).softmax(-1)
        return self.o(torch.einsum("bhmn,bnhd->bmhd", weights, v).flatten(2))


class Layers(nn.Module):
    """Layer i divides its scores by i + 1 too, as GPT-2 may."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Divided(i + 1) for i in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer.attend(x, x, None)
        return x


class Divided(Attention):
    def __init__(self, by: int) -> None:
        super().__init__()
        self.by = by

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        return super().score(q, k) / self.by


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


class Differential(nn.Module):
    """Two softmaxes a head, subtracted before they meet the values (Differential Transformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16) for _ in range(4))
        self.lam = nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor) -> Tensor:
        q, k = (f(x).unflatten(-1, (4, 4)).transpose(1, 2) for f in (self.q, self.k))
        v = self.v(x).unflatten(-1, (2, 8)).transpose(1, 2)
        first, second = (q @ k.mT / 2).softmax(-1).unflatten(1, (2, 2)).unbind(2)
        return self.o(((first - self.lam * second) @ v).transpose(1, 2).flatten(2))


class Edges(Attention):
    """adj: [B, Q, K], weights of edges, 0 = none."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((4, 1, 1), 0.7))

    def forward(self, x: Tensor, adj: Tensor) -> Tensor:  # type: ignore[override]
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        logs = torch.where(adj != 0, adj, torch.ones_like(adj)).log()[:, None]
        scores = (q @ k.mT / 2 + self.gain * logs).masked_fill((adj == 0)[:, None], -1e9)
        return self.out(self.merge(scores.softmax(-1) @ v))


class Additive(nn.Module):
    """One decoder state [B, 1, M] looks at the encoder's outputs (Bahdanau et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.wa, self.ua, self.va = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 1)

    def forward(self, query: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.va(torch.tanh(self.wa(query) + self.ua(keys))).mT.softmax(-1)
        return weights @ keys, weights


class BothWays(nn.Module):
    """Two inputs attend to each other by one product of scores, as in Grounding DINO."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.of_a, self.of_b = (nn.Linear(16, 16) for _ in range(4))

    def forward(
        self, query: Tensor, memory: Tensor, vision_attention_mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        scores = self.a(query) @ self.b(memory).mT / 4
        back = scores.mT
        if vision_attention_mask is not None:
            back = back.masked_fill(vision_attention_mask[:, None], -torch.inf)
        return scores.softmax(-1) @ self.of_b(memory), back.softmax(-1) @ self.of_a(query)


class Global(Attention):
    """Below 0 is padding, above 0 a token that all others see beside their window, as in Longformer."""

    def forward(self, x: Tensor, attention_mask: Tensor, is_index_masked: Tensor) -> Tensor:
        at = torch.arange(x.shape[1])
        near = ((at[:, None] - at).abs() < 2) | (attention_mask > 0)[:, None]
        assert bool((near.any(-1) & (~is_index_masked).any(-1, keepdim=True)).all())
        return self.attend(x, x, (near & ~is_index_masked[:, None])[:, None])


class OfTwoStreams(Attention):
    """The second stream has queries of its own, or there is none (XLNet, Yang et al. 2019). All are [N, B, M]."""

    def forward(
        self, h: Tensor, g: Tensor | None, attn_mask_h: Tensor | None, attn_mask_g: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        h = h.transpose(0, 1)
        hides = None if attn_mask_h is None else (attn_mask_h[..., 0].permute(2, 0, 1) == 0)[:, None]
        out = self.attend(h, h, hides).transpose(0, 1)
        if g is None:
            return out, None
        shown = None if attn_mask_g is None else (attn_mask_g[..., 0].permute(2, 0, 1) == 0)[:, None]
        return out, self.attend(g.transpose(0, 1), h, shown).transpose(0, 1)


class Distances(Attention):
    """Tables of 2 N relative distances, the longest first, for two lengths (Funnel, Dai et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.r = nn.Linear(16, 16)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, tables: tuple[list[Tensor], Tensor]) -> Tensor:
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        scores = q @ self.r(tables[0][0]).unflatten(-1, (-1, q.shape[-1])).permute(1, 2, 0)
        b, h, n, m = scores.shape
        shifted = scores.reshape(b, h, m, n)[:, :, 1:].reshape(b, h, n, m - 1)[..., : k.shape[2]]
        return self.out(self.merge(((q @ k.mT + shifted) / 2).softmax(-1) @ v))


class Compressing(Attention):
    """Each 32 tokens are one more key; of fewer there is none (DeepSeek-V4)."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.of_position = nn.Linear(16, 16), nn.Parameter(torch.randn(32, 16))

    def forward(self, x: Tensor) -> Tensor:
        whole = x[:, : x.shape[1] // 32 * 32].unflatten(1, (-1, 32))
        gates = self.gate(x)[:, : whole.shape[1] * 32].unflatten(1, (-1, 32)) + self.of_position
        return self.attend(x, torch.cat((x, (whole * gates.softmax(2)).sum(2)), 1), None)


class Kernel(Attention):
    """Linear attention that looks only back; each exp is stabilised with a maximum, as in Performers."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (self.split(f(x)) for f in (self.q, self.k, self.v))
        q, k = q.sigmoid(), (k - k.amax(-1, keepdim=True)).exp() + 1e-3
        weights = (q @ k.mT).tril()
        return self.out(self.merge(weights / (weights.sum(-1, keepdim=True) + 1e-3) @ v))


class Normed(Attention):
    """Queries and keys of norm sqrt(width) with learned gains, without a scale, as in NaViT."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(4))

    def score(self, q: Tensor, k: Tensor) -> Tensor:
        q, k = (functional.normalize(x, dim=-1) * x.shape[-1] ** 0.5 * self.gamma for x in (q, k))
        return q @ k.mT


class OfInputs(Attention):
    """A mask of the memory that is not given, as in Perceiver."""

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        inputs: Tensor | None = None,
        inputs_mask: Tensor | None = None,
    ) -> Tensor:
        memory, mask = (hidden_states, attention_mask) if inputs is None else (inputs, inputs_mask)
        return self.attend(hidden_states, memory, None if mask is None else mask.bool()[:, None])


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


class Pooled(nn.Module):
    """Returns (batch, dim), (batch, frames)."""

    def __init__(self) -> None:
        super().__init__()
        self.score = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = self.score(x).squeeze(-1).softmax(1)
        return (weights[..., None] * x).sum(1), weights


class Sparse(Attention):
    """Keeps the two largest scores of a row: not smooth, and no mistake."""

    def fill(self, scores: Tensor, allowed: Tensor | None) -> Tensor:
        scores = super().fill(scores, allowed)
        least = scores.topk(min(2, scores.shape[-1]), -1).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf)


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


X = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(3))
ROWS = X.transpose(0, 1)
OF_KINDS = torch.tensor([[1e4, 0, 0, 0, 0, 0], [1e4, 0, 0, 0, -1e4, -1e4]])
# Each with an example of its call, where it cannot be invented.
HABITS: dict[type[nn.Module], Any] = {
    **dict.fromkeys((Joint, Labels, Seeds, Layers, Clips, Padded, Differential, Additive, BothWays, Kernel)),
    **dict.fromkeys((Normed, OfInputs, Performer, Pooled, Sparse)),
    Edges: (X, X.new_ones(2, 6, 6).tril() + 0.1),
    Global: (X, OF_KINDS, OF_KINDS < 0),
    OfTwoStreams: (ROWS, None, torch.zeros(6, 6, 2, 1), torch.zeros(1, 6, 2, 1)),
    Distances: (X, X, X, ([torch.cat([X[0], X[1]]), X[0]], torch.zeros(6))),
    Compressing: (X,),
}


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
    diagnosis = headwise.diagnose(seeded(kind), example=HABITS[kind])
    assert diagnosis.healthy, str(diagnosis)
