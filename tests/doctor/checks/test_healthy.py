"""The diagnosis calls nothing a bug in attention that others trust, and leaves it as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import headwise
from headwise import nn as ours
from headwise.doctor import checks
from headwise.nn.positions import Alibi, Rope, T5Buckets
from tests.doctor.calling.test_interface_models import bert, deepseek, gpt2, llama, t5, vit
from tests.doctor.checks.specimens import Attention, Causal, Cross, found, seeded


def x_transformers(**options: Any) -> nn.Module:
    with warnings.catch_warnings():  # it compiles with TorchScript as it is imported, which torch has deprecated
        warnings.filterwarnings("ignore", message="`torch.jit.script")
        package = pytest.importorskip("x_transformers")
    return package.Attention(32, heads=4, dim_head=8, **options)


class Fused(nn.Module):
    """One projection, scaled_dot_product_attention, a residual connection and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)
        self.p = 0.1

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        """attn_mask: [B, 1, N, N], True = may attend"""
        b, n, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, n, 3, 4, 8).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(
            q, k, v, attn_mask, dropout_p=self.p if self.training else 0.0, is_causal=is_causal and attn_mask is None
        )
        return x + functional.dropout(self.proj(y.transpose(1, 2).reshape(b, n, -1)), self.p, self.training)


class Sparse(nn.Module):
    """Keeps the two largest scores of a row: not smooth, and no mistake."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(32, 32), nn.Linear(32, 64), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        q, (k, v) = self.q(x), self.kv(x).chunk(2, -1)
        scores = q @ k.transpose(-2, -1) / 32**0.5
        least = scores.topk(min(2, x.shape[1]), -1).values[..., -1:]
        return self.o(scores.masked_fill(scores < least, -torch.inf).softmax(-1) @ v)


HEALTHY: dict[str, Callable[[], nn.Module]] = {
    "torch": lambda: nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True),
    "torch, length first": lambda: nn.MultiheadAttention(32, 4, kdim=16, vdim=24),
    "torch, encoder layer": lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True),
    "torch, decoder layer": lambda: nn.TransformerDecoderLayer(32, 4, 64),
    "ours": lambda: ours.MultiHeadAttention(32, 4, dropout=0.1),
    "ours, grouped and rotary": lambda: ours.MultiHeadAttention(32, 4, num_kv_heads=2, positions=Rope(8)),
    "ours, alibi": lambda: ours.MultiHeadAttention(32, 4, positions=Alibi(4)),
    "ours, t5": lambda: ours.MultiHeadAttention(32, 4, positions=T5Buckets(4), scale=1.0),
    "ours, sinks and gate": lambda: ours.MultiHeadAttention(32, 4, sinks=True, gate=True, qk_norm="rms"),
    "ours, latent": lambda: ours.MultiHeadLatentAttention(
        32, 4, q_rank=16, kv_rank=16, nope_dim=8, rope_dim=4, value_head_dim=8
    ),
    "ours, scale 1": lambda: ours.MultiHeadAttention(32, 4, scale=1.0),
    "ours, softcap": lambda: ours.MultiHeadAttention(32, 4, softcap=20.0),
    "ours, one projection for all heads": lambda: ours.MultiHeadAttention(32, 4, projection="shared"),
    "ours, latents": lambda: ours.LatentAttention(4, 32, num_heads=4),
    "ours, encoder layer": lambda: ours.EncoderLayer(32, 4, ffn_dim=64),
    "ours, decoder layer": lambda: ours.DecoderLayer(32, 4, ffn_dim=64),
    "ours, encoder": lambda: ours.Encoder(32, num_layers=2, num_heads=4, ffn_dim=64),
    "ours, decoder": lambda: ours.Decoder(32, num_layers=2, num_heads=4, ffn_dim=64),
    "torch, encoder": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), 2),
    "t5, without a bias of its own": lambda: t5("eager", has_relative_attention_bias=False),
    **{f"bert, {how}": lambda how=how: bert("BertAttention", how) for how in ("eager", "sdpa")},
    **{f"gpt2, {how}": lambda how=how: gpt2(how) for how in ("eager", "sdpa")},
    **{f"llama, {how}": lambda how=how: llama(how) for how in ("eager", "sdpa")},
    **{f"vit, {how}": lambda how=how: vit(how) for how in ("eager", "sdpa")},
    **{f"t5, {how}": lambda how=how: t5(how, has_relative_attention_bias=True) for how in ("eager", "sdpa")},
    **{f"deepseek, {how}": lambda how=how: deepseek(how) for how in ("eager", "sdpa")},
    "x-transformers": x_transformers,
    "x-transformers, causal": lambda: x_transformers(causal=True),
    "x-transformers, grouped and fused": lambda: x_transformers(flash=True, kv_heads=2),
    "plain": lambda: Attention(32, dropout=0.1),
    "causal": lambda: Causal(32),
    "cross": lambda: Cross(32),
    "fused": Fused,
    "sparse": Sparse,
}


# What a quicker one of them, or one of the zoo, is too.
SLOW = (
    *("ours, alibi", "ours, scale 1", "ours, softcap", "ours, encoder", "ours, decoder", "torch, encoder"),
    *("bert, sdpa", "gpt2, eager", "llama, sdpa", "vit, eager", "t5, sdpa", "deepseek, eager"),
    *("x-transformers", "x-transformers, causal", "x-transformers, grouped and fused"),
    *("ours, encoder layer", "ours, decoder layer", "torch, decoder layer", "bert, eager", "vit, sdpa"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in HEALTHY]
)
def test_the_whole_diagnosis_names_no_bug(name: str) -> None:
    torch.manual_seed(0)
    module = HEALTHY[name]()
    before = {key: x.clone() for key, x in module.state_dict().items()}
    diagnosis = headwise.diagnose(module)
    assert diagnosis.bugs == ()
    assert len(diagnosis.understood) > 1
    assert len(diagnosis.unchecked) <= len(checks.READ) + 1  # what could not be traced leaves the others
    assert all(torch.equal(x, before[key]) for key, x in module.state_dict().items())
    assert module.training


TORCHS: list[Callable[[], nn.Module]] = [
    lambda: nn.MultiheadAttention(16, 4, dropout=0.3, batch_first=True),
    lambda: nn.MultiheadAttention(16, 4, kdim=12, vdim=10),
    lambda: nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
]


@pytest.mark.parametrize("check", ["dropout_misplaced", "head_merge", "layout", "mask_cells", "projection_order"])
def test_reading_torchs_own_layers_finds_not_even_a_note(check: str) -> None:
    assert [found(check, seeded(make)) for make in TORCHS] == [[]] * 3
