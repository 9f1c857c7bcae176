"""MONAI: its transformer blocks and networks with windows."""

from __future__ import annotations

import torch

from tests.capture.libraries.library import Cases, called, image


def cases() -> Cases:
    from monai.networks import blocks, nets

    x, context = torch.randn(2, 16, 32), torch.randn(2, 7, 24)
    return {
        "SABlock": lambda: called(blocks.SABlock(32, 4), x),
        "SABlock, relative positions": lambda: called(
            blocks.SABlock(32, 4, rel_pos_embedding="decomposed", input_size=(4, 4)), x
        ),
        "SABlock, causal": lambda: called(blocks.SABlock(32, 4, causal=True, sequence_length=16), x),
        "CrossAttentionBlock": lambda: called(blocks.CrossAttentionBlock(32, 4, context_input_size=24), x, context),
        "SpatialAttentionBlock": lambda: called(
            blocks.SpatialAttentionBlock(2, 32, num_head_channels=8, norm_num_groups=4), torch.randn(1, 32, 4, 4)
        ),
        "SwinUNETR": lambda: called(
            nets.SwinUNETR(1, 2, feature_size=12, depths=(1, 1, 1, 1), num_heads=(2, 2, 2, 2), spatial_dims=2),
            image(64, 1),
        ),
    }
