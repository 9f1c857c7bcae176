"""MONAI: its transformer blocks and networks with windows."""

from __future__ import annotations

import torch

from tests.capture.libraries.library import Cases, called, image


def cases() -> Cases:
    from monai.networks import blocks, nets

    x, context, volume = torch.randn(2, 16, 32), torch.randn(2, 7, 24), torch.randn(1, 1, 32, 32, 32)
    return {
        "SABlock": lambda: called(blocks.SABlock(32, 4), x),
        "SABlock, flash": lambda: called(blocks.SABlock(32, 4, use_flash_attention=True), x),
        "SABlock, relative positions": lambda: called(
            blocks.SABlock(32, 4, rel_pos_embedding="decomposed", input_size=(4, 4)), x
        ),
        "SABlock, causal": lambda: called(blocks.SABlock(32, 4, causal=True, sequence_length=16), x),
        "CrossAttentionBlock": lambda: called(blocks.CrossAttentionBlock(32, 4, context_input_size=24), x, context),
        "SpatialAttentionBlock": lambda: called(
            blocks.SpatialAttentionBlock(2, 32, num_head_channels=8, norm_num_groups=4), torch.randn(1, 32, 4, 4)
        ),
        "ViT": lambda: called(nets.ViT(1, 32, 16, hidden_size=32, mlp_dim=32, num_layers=2, num_heads=4), volume),
        "SwinUNETR": lambda: called(
            nets.SwinUNETR(1, 2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(2, 2, 2, 2), spatial_dims=2),
            image(64, 1),
        ),
        "UNETR": lambda: called(nets.UNETR(1, 2, (32, 32, 32), hidden_size=24, mlp_dim=24, num_heads=4), volume),
        "DiffusionModelUNet": lambda: called(
            nets.DiffusionModelUNet(
                2,
                1,
                1,
                channels=(16, 32),
                attention_levels=(False, True),
                norm_num_groups=4,
                num_res_blocks=1,
                num_head_channels=8,
                with_conditioning=True,
                cross_attention_dim=24,
            ),
            torch.randn(1, 1, 16, 16),
            torch.tensor([3]),
            context[:1],
        ),
        "AutoencoderKL": lambda: called(
            nets.AutoencoderKL(
                2,
                1,
                1,
                channels=(16, 32),
                attention_levels=(False, True),
                norm_num_groups=4,
                latent_channels=2,
                num_res_blocks=(1, 1),
            ),
            torch.randn(1, 1, 16, 16),
        ),
    }
