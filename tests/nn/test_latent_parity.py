"""LatentAttention against the Set Transformer's paper, and Hugging Face's Perceiver, with the same weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import relu
from transformers import PerceiverConfig
from transformers.models.perceiver.modeling_perceiver import PerceiverEncoder, PerceiverLayer

from headwise.nn.cross import CrossLayer
from headwise.nn.latent import LatentAttention
from headwise.nn.transformer_layer import EncoderLayer
from tests.nn.latents import close, gradient, make, shake

# The Set Transformer.


def paper_mab(layer: CrossLayer, x: Tensor, y: Tensor) -> Tensor:
    """Lee et al. 2019, equations 6 and 7, with the attention of Vaswani et al. 2017 and its scale 1/√D."""
    attention, heads = layer.attention, []
    q, k, v = attention.q(x), attention.k(y), attention.v(y)
    for q_h, k_h, v_h in zip(*(z.chunk(attention.num_heads, -1) for z in (q, k, v)), strict=True):
        heads.append(torch.softmax(q_h @ k_h.mT / math.sqrt(q_h.shape[-1]), -1) @ v_h)
    h = layer.attention_norm(x + attention.out(torch.cat(heads, -1)))
    return layer.mlp_norm(h + layer.mlp.down(relu(layer.mlp.up(h))))


def test_inducing_points_are_the_papers() -> None:
    isab = make(norm_first=False, read_out=True, activation="relu")
    x = torch.randn(2, 7, 6)
    induced = paper_mab(isab.reads[0], isab.latents.expand(2, -1, -1), x)  # equations 9 and 10
    close(isab(x), paper_mab(isab.read_out, x, induced))
    pma = make(norm_first=False, activation="relu")  # equation 11, of what stands for rFF(Z)
    close(pma(x), paper_mab(pma.reads[0], pma.latents.expand(2, -1, -1), x))


# The Perceiver, as Hugging Face has it.


def config(**options: Any) -> PerceiverConfig:
    given = {"num_latents": 3, "d_latents": 8, "num_cross_attention_heads": 2, "num_self_attention_heads": 4, **options}
    return PerceiverConfig(**given, attention_probs_dropout_prob=0.1)  # dropout only in training


def copy_layer(theirs: PerceiverLayer, ours: CrossLayer | EncoderLayer) -> None:
    state = theirs.attention.state_dict()
    norms = {name: state.pop(name) for name in list(state) if "layernorm" in name}
    ours.attention.load_state_dict(state)
    pairs = [(ours.attention_norm, "self.layernorm1."), (getattr(ours, "memory_norm", None), "self.layernorm2.")]
    for norm, prefix in pairs:
        if norm is not None:
            norm.load_state_dict({name.removeprefix(prefix): x for name, x in norms.items() if name.startswith(prefix)})
    ours.mlp_norm.load_state_dict(theirs.layernorm.state_dict())
    ours.mlp.up.load_state_dict(theirs.mlp.dense1.state_dict())
    ours.mlp.down.load_state_dict(theirs.mlp.dense2.state_dict())


def additive(padding: Tensor) -> Tensor:
    """[B, 1, 1, K], as Hugging Face wants it."""
    return torch.where(padding, 0.0, torch.finfo(torch.float32).min)[:, None, None]


PADDING = torch.tensor([[True] * 7, [True] * 4 + [False] * 3])


@pytest.mark.parametrize("padding", [None, PADDING], ids=["no padding", "padding"])
@pytest.mark.parametrize("residual", [True, False])
def test_a_perceiver_layer_that_reads(residual: bool, padding: Tensor | None) -> None:
    shape: dict[str, Any] = {"q_dim": 8, "kv_dim": 6, "num_heads": 2, "qk_channels": 12, "v_channels": 10}
    theirs = PerceiverLayer(config(), is_cross_attention=True, widening_factor=2, use_query_residual=residual, **shape)
    theirs.eval()
    shake(theirs)
    ours = CrossLayer(8, 2, memory_dim=6, head_dim=6, value_head_dim=5, ffn_dim=16, query_residual=residual)
    copy_layer(theirs, ours)
    x, memory = torch.randn(2, 3, 8), torch.randn(2, 7, 6)
    mask = None if padding is None else additive(padding)

    def hugging_face(memory: Tensor) -> Tensor:
        return theirs(x, inputs=memory, inputs_mask=mask)[0]

    def headwise_layer(memory: Tensor) -> Tensor:
        return ours(x, memory, real=padding)

    close(headwise_layer(memory), hugging_face(memory))
    close(gradient(headwise_layer, memory), gradient(hugging_face, memory), 1e-4)


@pytest.mark.parametrize("padding", [None, PADDING], ids=["no padding", "padding"])
def test_a_whole_perceiver_encoder(padding: Tensor | None) -> None:
    blocks, layers = 2, 3  # Hugging Face runs the same layers once a block, after one read
    options = {"num_blocks": blocks, "num_self_attends_per_block": layers, "cross_attention_shape_for_attention": "q"}
    widening = {"self_attention_widening_factor": 2, "cross_attention_widening_factor": 2}
    theirs = PerceiverEncoder(config(**options, **widening), kv_dim=6).eval()
    shake(theirs)
    ours = LatentAttention(3, 8, 6, 2, self_layers=blocks * layers, self_heads=4, ffn_dim=16)
    copy_layer(theirs.cross_attention, ours.reads[0])
    for i, layer in enumerate(ours.reads[0].layers):
        copy_layer(theirs.self_attends[i % layers], layer)
    x, mask = torch.randn(2, 7, 6), None if padding is None else additive(padding)

    def hugging_face(x: Tensor) -> Tensor:
        return theirs(ours.latents.expand(2, -1, -1), inputs=x, inputs_mask=mask).last_hidden_state

    def headwise_module(x: Tensor) -> Tensor:
        return ours(x, real=padding)

    close(headwise_module(x), hugging_face(x))
    ours.zero_grad()
    close(gradient(headwise_module, x), gradient(hugging_face, x), 1e-4)
    shared = sum(ours.reads[0].layers[i].mlp.up.weight.grad for i in (0, 3))
    close(shared, theirs.self_attends[0].mlp.dense1.weight.grad, 1e-4)
