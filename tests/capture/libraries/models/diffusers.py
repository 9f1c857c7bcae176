"""diffusers: its Attention with each processor, and models of several kinds."""

from __future__ import annotations

from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases, called


def cases() -> Cases:
    import diffusers
    from diffusers.models import attention_processor as processors
    from diffusers.models.attention_processor import Attention

    x, context = torch.randn(2, 16, 32), torch.randn(2, 7, 24)
    picture, time = torch.randn(1, 4, 16, 16), torch.tensor([3])

    def attention(
        processor: str, *args: Any, given: Any = x, options: dict[str, Any] | None = None, **kwargs: Any
    ) -> Case:
        module = Attention(query_dim=32, heads=4, dim_head=8, **(options or {}))
        module.set_processor(getattr(processors, processor)(*args))
        return called(module, given, **kwargs)

    added = {"added_kv_proj_dim": 24, "norm_num_groups": 4}
    unet = {
        **{"sample_size": 16, "in_channels": 4, "out_channels": 4, "norm_num_groups": 4, "layers_per_block": 1},
        **{"block_out_channels": (16, 32), "cross_attention_dim": 24, "attention_head_dim": 8},
        **{
            "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
            "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
        },
    }
    heads = {"num_attention_heads": 4, "attention_head_dim": 8, "num_layers": 2}

    return {
        "Attention, AttnProcessor": lambda: attention("AttnProcessor"),
        "Attention, AttnProcessor, cross": lambda: attention(
            "AttnProcessor", options={"cross_attention_dim": 24}, encoder_hidden_states=context
        ),
        "Attention, AttnProcessor, masked": lambda: attention(
            "AttnProcessor", attention_mask=torch.zeros(2, 1, 16).index_fill(2, torch.tensor([14, 15]), -10000.0)
        ),
        "Attention, AttnProcessor, float32 softmax": lambda: attention(
            "AttnProcessor", options={"upcast_attention": True, "upcast_softmax": True}
        ),
        "Attention, AttnProcessor2_0": lambda: attention("AttnProcessor2_0"),
        "Attention, SlicedAttnProcessor": lambda: attention("SlicedAttnProcessor", 2),
        "Attention, AttnAddedKVProcessor": lambda: attention(
            "AttnAddedKVProcessor", given=torch.randn(2, 32, 4, 4), options=added, encoder_hidden_states=context
        ),
        "Attention, AttnAddedKVProcessor2_0": lambda: attention(
            "AttnAddedKVProcessor2_0", given=torch.randn(2, 32, 4, 4), options=added, encoder_hidden_states=context
        ),
        "Attention, SlicedAttnAddedKVProcessor": lambda: attention(
            "SlicedAttnAddedKVProcessor",
            2,
            given=torch.randn(2, 32, 4, 4),
            options=added,
            encoder_hidden_states=context,
        ),
        "Attention, PAG": lambda: attention("PAGIdentitySelfAttnProcessor2_0"),
        "Attention, qk norm": lambda: attention("AttnProcessor2_0", options={"qk_norm": "rms_norm"}),
        "Attention of pictures": lambda: attention(
            "AttnProcessor", given=torch.randn(2, 32, 4, 4), options={"norm_num_groups": 4, "residual_connection": True}
        ),
        "UNet2DConditionModel": lambda: called(diffusers.UNet2DConditionModel(**unet), picture, time, context[:1]),
        "SD3Transformer2DModel": lambda: called(
            diffusers.SD3Transformer2DModel(
                **heads,
                sample_size=8,
                patch_size=2,
                in_channels=4,
                joint_attention_dim=24,
                caption_projection_dim=32,
                pooled_projection_dim=16,
                out_channels=4,
                pos_embed_max_size=8,
                qk_norm="rms_norm",
            ),
            torch.randn(1, 4, 8, 8),
            context[:1],
            torch.randn(1, 16),
            time,
        ),
        "FluxTransformer2DModel": lambda: called(
            diffusers.FluxTransformer2DModel(
                in_channels=4,
                num_layers=1,
                num_single_layers=1,
                attention_head_dim=16,
                num_attention_heads=2,
                joint_attention_dim=24,
                pooled_projection_dim=16,
                axes_dims_rope=(4, 4, 8),
            ),
            torch.randn(1, 9, 4),
            context[:1],
            torch.randn(1, 16),
            torch.tensor([0.5]),
            torch.rand(9, 3),
            torch.rand(7, 3),
        ),
    }
