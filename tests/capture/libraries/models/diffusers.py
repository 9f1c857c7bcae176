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

    def sliced() -> Case:
        model = diffusers.UNet2DConditionModel(**unet)
        model.set_attention_slice(1)
        return called(model, picture, time, context[:1])

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
        "UNet2DConditionModel, sliced": sliced,
        "UNet2DModel": lambda: called(
            diffusers.UNet2DModel(
                sample_size=16,
                in_channels=4,
                out_channels=4,
                block_out_channels=(16, 32),
                norm_num_groups=4,
                attention_head_dim=8,
                down_block_types=("DownBlock2D", "AttnDownBlock2D"),
                up_block_types=("AttnUpBlock2D", "UpBlock2D"),
                layers_per_block=1,
            ),
            *(picture, time),
        ),
        "AutoencoderKL": lambda: called(
            diffusers.AutoencoderKL(block_out_channels=(16,), norm_num_groups=4, layers_per_block=1),
            torch.randn(1, 3, 16, 16),
        ),
        "VQModel": lambda: called(
            diffusers.VQModel(block_out_channels=(16,), norm_num_groups=4, layers_per_block=1),
            torch.randn(1, 3, 16, 16),
        ),
        "DiTTransformer2DModel": lambda: called(
            diffusers.DiTTransformer2DModel(**heads, in_channels=4, out_channels=8, sample_size=8, norm_num_groups=4),
            torch.randn(1, 4, 8, 8),
            timestep=time,
            class_labels=torch.tensor([1]),
        ),
        "PixArtTransformer2DModel": lambda: called(
            diffusers.PixArtTransformer2DModel(
                **heads,
                in_channels=4,
                out_channels=8,
                sample_size=8,
                cross_attention_dim=32,
                caption_channels=24,
                use_additional_conditions=False,
            ),
            torch.randn(1, 4, 8, 8),
            context[:1],
            time,
            added_cond_kwargs={"resolution": None, "aspect_ratio": None},
        ),
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
        "SanaTransformer2DModel": lambda: called(
            diffusers.SanaTransformer2DModel(
                **heads,
                in_channels=4,
                out_channels=4,
                num_cross_attention_heads=4,
                cross_attention_head_dim=8,
                cross_attention_dim=32,
                caption_channels=24,
                sample_size=8,
            ),
            torch.randn(1, 4, 8, 8),
            context[:1],
            time,
        ),
        "LTXVideoTransformer3DModel": lambda: called(
            diffusers.LTXVideoTransformer3DModel(
                **heads,
                in_channels=4,
                out_channels=4,
                cross_attention_dim=32,
                caption_channels=24,
                qk_norm="rms_norm_across_heads",
            ),
            torch.randn(1, 8, 4),
            context[:1],
            time,
            torch.ones(1, 7),
            2,
            2,
            2,
        ),
        "PriorTransformer": lambda: called(
            diffusers.PriorTransformer(**heads, embedding_dim=24, num_embeddings=7, additional_embeddings=4),
            torch.randn(1, 24),
            time,
            torch.randn(1, 24),
            torch.randn(1, 7, 24),
            torch.ones(1, 7).bool(),
        ),
        "UVit2DModel": lambda: called(
            diffusers.UVit2DModel(
                hidden_size=32,
                cond_embed_dim=16,
                micro_cond_encode_dim=2,
                micro_cond_embed_dim=10,
                encoder_hidden_size=24,
                vocab_size=32,
                codebook_size=32,
                in_channels=32,
                block_out_channels=32,
                num_res_blocks=1,
                num_hidden_layers=1,
                num_attention_heads=4,
                intermediate_size=32,
                downsample=True,
                upsample=True,
            ),
            torch.randint(0, 32, (1, 8, 8)),
            context[:1],
            torch.randn(1, 16),
            torch.randn(1, 5),
        ),
    }
