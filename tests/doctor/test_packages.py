"""Attention of popular packages, each with a call as its users make it, where the package is installed.

What the doctor says above a note is listed: it is defended in docs/doctor.md or in docs/found.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import Tensor

from headwise.doctor.diagnosis import diagnose


def x(*shape: int) -> Tensor:
    return torch.randn(*shape)


def _max_vit(of: Any) -> Any:
    config = of.MaxxVitTransformerCfg(dim_head=16, window_size=(4, 4), grid_size=(4, 4))
    return of.PartitionAttentionCl(64, "grid", config), x(2, 8, 8, 64)


def _flux(of: Any) -> Any:
    sizes = {"query_dim": 64, "heads": 4, "dim_head": 16, "added_kv_proj_dim": 64}
    module = of.FluxAttention(**sizes, context_pre_only=False, processor=of.FluxAttnProcessor())
    angle = torch.arange(16.0)[:, None] * 10.0 ** -torch.arange(8.0).repeat_interleave(2)
    rotary = (angle.cos(), angle.sin())
    return module, x(2, 9, 64), {"encoder_hidden_states": x(2, 7, 64), "image_rotary_emb": rotary}


def _speechbrain(of: Any) -> Any:
    given = x(2, 9, 64)
    return of.RelPosMHAXL(64, 4), given, given, given, {"pos_embs": of.RelPosEncXL(64)(given)}


FUTURE = {"attn_mask": torch.full((9, 9), -torch.inf).triu(1)}
MASK = {"mask": torch.ones(2, 9).bool()}
HEADS = {"heads": 4, "dim_head": 16}
# module of a package -> what makes of it a module and its arguments, those by name in a dictionary; what is found
CASES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "timm.models.vision_transformer": (lambda of: (of.Block(64, 4, init_values=1e-5), x(2, 17, 64)), ""),
    "timm.models.swin_transformer": (
        lambda of: (of.SwinTransformerBlock(64, (8, 8), 4, window_size=4, shift_size=2), x(2, 8, 8, 64)),
        "",
    ),
    "timm.models.swin_transformer_v2": (lambda of: (of.WindowAttention(64, (4, 4), 4), x(8, 16, 64)), ""),
    "timm.models.maxxvit": (_max_vit, ""),
    "timm.models.beit": (
        lambda of: (of.Attention(64, 4, qkv_bias=True, window_size=(4, 4)), x(2, 17, 64)),
        "",
    ),
    "timm.models.levit": (
        lambda of: (of.Attention(64, 16, 4, resolution=(4, 4), use_conv=False), x(2, 16, 64)),
        "",
    ),
    "diffusers.models.attention_processor": (
        lambda of: (
            of.Attention(query_dim=64, cross_attention_dim=32, **HEADS),
            x(2, 9, 64),
            {"encoder_hidden_states": x(2, 7, 32)},
        ),
        "",
    ),
    "diffusers.models.transformers.transformer_flux": (_flux, ""),
    "open_clip.transformer": (lambda of: (of.ResidualAttentionBlock(64, 4), x(2, 9, 64), FUTURE), ""),
    "vit_pytorch.vit": (lambda of: (of.Attention(64, **HEADS), x(2, 17, 64)), ""),
    "vit_pytorch.na_vit": (lambda of: (of.Attention(64, **HEADS), x(2, 17, 64)), ""),
    "x_transformers.x_transformers": (lambda of: (of.Attention(64, **HEADS, causal=True), x(2, 9, 64), MASK), ""),
    "linformer": (lambda of: (of.LinformerSelfAttention(64, 16, k=8, heads=4), x(2, 16, 64)), ""),
    "perceiver_pytorch.perceiver_pytorch": (
        lambda of: (of.Attention(64, 32, **HEADS), x(2, 9, 64), {"context": x(2, 9, 32), **MASK}),
        "",
    ),
    "slot_attention": (lambda of: (of.SlotAttention(5, 64), x(2, 16, 64)), ""),
    "conformer.conformer": (lambda of: (of.Attention(64, **HEADS), x(2, 9, 64)), ""),
    "monai.networks.blocks.selfattention": (lambda of: (of.SABlock(64, 4), x(2, 9, 64)), "empty-row-nan"),
    "speechbrain.nnet.attention": (_speechbrain, "wrong-scale fails-in-half fails-in-double"),
    "local_attention.transformer": (
        lambda of: (of.LocalMHA(dim=64, window_size=4, **HEADS, causal=True), x(2, 9, 64), MASK),
        "cache-mismatch fails-in-half",
    ),
    "performer_pytorch": (lambda of: (of.SelfAttention(64, **HEADS, causal=True), x(2, 16, 64)), "causal-leak"),
    "torch_geometric.nn.attention": (
        lambda of: (of.PerformerAttention(64, 4, head_channels=16), x(2, 9, 64)),
        "normaliser-wrong",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_a_popular_module(name: str) -> None:
    make, said = CASES[name]
    pytest.importorskip(name.partition(".")[0])
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, *args = make(import_module(name))
        kwargs = args.pop() if isinstance(args[-1], dict) else {}
        found = diagnose(module.eval(), example=(tuple(args), kwargs))
    assert not found.not_examined
    assert {x.name for x in found.findings if x.severity != "note"} == set(said.split())
