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
from torch import Tensor, nn

from headwise.doctor.diagnosis import diagnose

Case = tuple[nn.Module, tuple[Any, ...], dict[str, Any]]
CASES: dict[str, tuple[Callable[..., Case], tuple[str, ...]]] = {}


def case(module: str, *said: str) -> Callable[[Callable[..., Case]], Callable[..., Case]]:
    """A function of this module of a package, and the findings above a note."""

    def keep(make: Callable[..., Case]) -> Callable[..., Case]:
        CASES[f"{module} {make.__name__.strip('_')}"] = (make, said)
        return make

    return keep


def x(*shape: int) -> Tensor:
    return torch.randn(*shape)


@case("timm.models.vision_transformer")
def _vit(of: Any) -> Case:
    return of.Block(64, 4, qkv_bias=True, init_values=1e-5), (x(2, 17, 64),), {}


@case("timm.models.swin_transformer")
def _swin(of: Any) -> Case:
    return of.SwinTransformerBlock(64, (8, 8), 4, window_size=4, shift_size=2), (x(2, 8, 8, 64),), {}


@case("timm.models.swin_transformer_v2")
def _swin_2(of: Any) -> Case:
    return of.WindowAttention(64, (4, 4), 4), (x(8, 16, 64),), {}


@case("timm.models.maxxvit")
def _max_vit(of: Any) -> Case:
    config = of.MaxxVitTransformerCfg(dim_head=16, window_size=(4, 4), grid_size=(4, 4))
    return of.PartitionAttentionCl(64, "grid", config), (x(2, 8, 8, 64),), {}


@case("timm.models.beit")
def _beit(of: Any) -> Case:
    return of.Attention(64, 4, qkv_bias=True, window_size=(4, 4)), (x(2, 17, 64),), {}


@case("timm.models.levit")
def _levit(of: Any) -> Case:
    return of.Attention(64, 16, 4, resolution=(4, 4), use_conv=False), (x(2, 16, 64),), {}


@case("diffusers.models.attention_processor")
def _diffusers(of: Any) -> Case:
    module = of.Attention(query_dim=64, cross_attention_dim=32, heads=4, dim_head=16)
    return module, (x(2, 9, 64),), {"encoder_hidden_states": x(2, 7, 32)}


@case("diffusers.models.transformers.transformer_flux")
def _flux(of: Any) -> Case:
    module = of.FluxAttention(
        query_dim=64,
        heads=4,
        dim_head=16,
        added_kv_proj_dim=64,
        context_pre_only=False,
        processor=of.FluxAttnProcessor(),
    )
    angle = torch.arange(16.0)[:, None] * 10.0 ** -torch.arange(8.0).repeat_interleave(2)
    rotary = (angle.cos(), angle.sin())
    return module, (x(2, 9, 64),), {"encoder_hidden_states": x(2, 7, 64), "image_rotary_emb": rotary}


@case("open_clip.transformer")
def _clip(of: Any) -> Case:
    future = torch.full((9, 9), -torch.inf).triu(1)
    return of.ResidualAttentionBlock(64, 4), (x(2, 9, 64),), {"attn_mask": future}


@case("vit_pytorch.vit")
def _vit_pytorch(of: Any) -> Case:
    return of.Attention(64, heads=4, dim_head=16), (x(2, 17, 64),), {}


@case("vit_pytorch.na_vit")
def _na_vit(of: Any) -> Case:
    return of.Attention(64, heads=4, dim_head=16), (x(2, 17, 64),), {}


@case("x_transformers.x_transformers")
def _x_transformers(of: Any) -> Case:
    return of.Attention(64, heads=4, dim_head=16, causal=True), (x(2, 9, 64),), {"mask": torch.ones(2, 9).bool()}


@case("linformer")
def _linformer(of: Any) -> Case:
    return of.LinformerSelfAttention(64, 16, k=8, heads=4), (x(2, 16, 64),), {}


@case("perceiver_pytorch.perceiver_pytorch")
def _perceiver(of: Any) -> Case:
    given = {"context": x(2, 12, 32), "mask": torch.ones(2, 12).bool()}
    return of.Attention(64, 32, heads=4, dim_head=16), (x(2, 9, 64),), given


@case("slot_attention")
def _slots(of: Any) -> Case:
    return of.SlotAttention(5, 64), (x(2, 16, 64),), {}


@case("conformer.conformer")
def _conformer(of: Any) -> Case:
    return of.Attention(64, heads=4, dim_head=16), (x(2, 9, 64),), {}


@case("monai.networks.blocks.selfattention", "empty-row-nan")
def _monai(of: Any) -> Case:
    return of.SABlock(64, 4), (x(2, 9, 64),), {}


@case("speechbrain.nnet.attention", "wrong-scale", "fails-in-half", "fails-in-double")
def _speechbrain(of: Any) -> Case:
    given = x(2, 9, 64)
    return of.RelPosMHAXL(64, 4), (given, given, given), {"pos_embs": of.RelPosEncXL(64)(given)}


@case("local_attention.transformer", "cache-mismatch", "fails-in-half")
def _local(of: Any) -> Case:
    module = of.LocalMHA(dim=64, window_size=4, dim_head=16, heads=4, causal=True)
    return module, (x(2, 16, 64),), {"mask": torch.ones(2, 16).bool()}


@case("performer_pytorch", "causal-leak")
def _performer(of: Any) -> Case:
    return of.SelfAttention(64, heads=4, dim_head=16, causal=True), (x(2, 16, 64),), {}


@case("torch_geometric.nn.attention", "normaliser-wrong")
def _geometric(of: Any) -> Case:
    return of.PerformerAttention(64, 4, head_channels=16), (x(2, 9, 64),), {}


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_a_popular_module(name: str) -> None:
    make, said = CASES[name]
    pytest.importorskip(name.partition(".")[0].partition(" ")[0])
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module, args, kwargs = make(import_module(name.partition(" ")[0]))
        module.eval()
        found = diagnose(module, example=(args, kwargs))
    assert not found.not_examined
    assert {x.name for x in found.findings if x.severity != "note"} == set(said)
