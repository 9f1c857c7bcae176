"""lucidrains' packages: vit-pytorch, perceiver-pytorch, local-attention, linformer, slot-attention."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from tests.capture.libraries.library import Case, Cases, called, image

HEAD = {
    **{"image_size": 32, "patch_size": 8, "num_classes": 5, "dim": 32, "depth": 2},
    **{"heads": 4, "mlp_dim": 32, "dim_head": 8},
}


def cases() -> Cases:
    def vit(module: str, name: str, **options: Any) -> Case:
        cls = getattr(importlib.import_module(f"vit_pytorch.{module}"), name)
        size = options.pop("size", 32)
        return called(cls(**options), image(size))

    def other(module: str, name: str, *args: Any, **options: Any) -> Case:
        return called(getattr(importlib.import_module(module), name)(**options), *args)

    importlib.import_module("vit_pytorch")
    x = torch.randn(2, 16, 32)
    return {
        "ViT": lambda: vit("vit", "ViT", **HEAD),
        "DeepViT": lambda: vit("deepvit", "DeepViT", **HEAD),
        "CaiT": lambda: vit("cait", "CaiT", **HEAD, cls_depth=1),
        "ViT, patch merger": lambda: vit(
            "vit_with_patch_merger", "ViT", **HEAD, patch_merge_layer=1, patch_merge_num_tokens=4
        ),
        "ViT, learnable memory": lambda: vit("learnable_memory_vit", "ViT", **HEAD),
        "AdaptiveTokenSampling": lambda: vit("ats_vit", "ViT", **HEAD, max_tokens_per_depth=(12, 8)),
        "XCiT": lambda: vit("xcit", "XCiT", **HEAD, cls_depth=1),
        "LeViT": lambda: vit(
            "levit", "LeViT", image_size=128, num_classes=5, dim=(16, 32), depth=1, heads=(2, 4), mlp_mult=2, size=128
        ),
        "RegionViT": lambda: vit(
            "regionvit", "RegionViT", dim=(16, 16, 32, 32), depth=(1, 1, 1, 1), window_size=2, num_classes=5, size=128
        ),
        "CrossFormer": lambda: vit(
            *("crossformer", "CrossFormer"),
            num_classes=5,
            dim=(32, 32, 32, 32),
            depth=(1, 1, 1, 1),
            global_window_size=(4, 4, 2, 2),
            local_window_size=(4, 4, 2, 2),
            size=128,
        ),
        "SepViT": lambda: vit(
            "sep_vit", "SepViT", num_classes=5, dim=16, dim_head=8, heads=(2, 4), depth=(1, 2), size=56
        ),
        "MaxViT": lambda: vit(
            "max_vit", "MaxViT", num_classes=5, dim=16, depth=(1, 1), dim_head=8, window_size=4, size=64
        ),
        "Perceiver": lambda: other(
            *("perceiver_pytorch", "Perceiver"),
            torch.randn(1, 8, 8, 3),
            input_channels=3,
            input_axis=2,
            num_freq_bands=2,
            max_freq=10.0,
            depth=2,
            num_latents=6,
            latent_dim=16,
            cross_heads=2,
            latent_heads=2,
            cross_dim_head=8,
            latent_dim_head=8,
            num_classes=5,
        ),
        "LocalAttention": lambda: other(
            *("local_attention", "LocalAttention"),
            *torch.randn(3, 2, 16, 8),
            dim=8,
            window_size=4,
            causal=True,
            look_backward=1,
        ),
        "LocalAttention, both sides": lambda: other(
            *("local_attention", "LocalAttention"),
            *torch.randn(3, 2, 16, 8),
            dim=8,
            window_size=4,
            causal=False,
            autopad=True,
        ),
        "Linformer": lambda: other(
            "linformer", "Linformer", x, dim=32, seq_len=16, depth=1, heads=4, k=4, one_kv_head=True, share_kv=False
        ),
        "SlotAttention": lambda: other("slot_attention", "SlotAttention", x, num_slots=3, dim=32, iters=2),
        "MultiHeadSlotAttention": lambda: other(
            "slot_attention", "MultiHeadSlotAttention", x, num_slots=3, dim=32, heads=4, dim_head=8, iters=2
        ),
    }
